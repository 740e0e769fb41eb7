"""What PowerSGD remembers of the steps before: errors that are still to be sent, and the bases of the last step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass
class _Known:
    parameters: frozenset[int]
    state: Any


class Memory:
    """torch's state of each set of parameters that is sent together, by their shapes: a state that was saved is given to the set that comes
    with the same ones. The errors are each rank's own: to other ranks than those that wrote them they say nothing."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._loaded: dict[str, dict[str, Any]] = {}

    def add(self, module: nn.Module, state: Any) -> None:
        """``module`` holds the parameters that ``state`` is for, and last what ranks tell each other."""
        parameters = list(module.parameters())[:-1]
        identity = frozenset(map(id, parameters))
        key = base = ", ".join("x".join(map(str, one.shape)) for one in parameters)
        number = 1
        while key in self._known and self._known[key].parameters != identity:
            number += 1
            key = f"{base} #{number}"
        self._known[key] = _Known(identity, state)
        if key in self._loaded:
            _fill(state, self._loaded.pop(key))

    def state_dict(self) -> dict[str, Any]:
        return self._loaded | {key: _read(known.state) for key, known in self._known.items()}

    def load_state_dict(self, saved: dict[str, Any], own: bool) -> None:
        """``own``: this rank has written it."""
        self._loaded = {key: one if own else one | {"errors": {}} for key, one in saved.items()}
        for key in [key for key in self._loaded if key in self._known]:
            _fill(self._known[key].state, self._loaded.pop(key))


def _read(state: Any) -> dict[str, Any]:
    tensors = {"errors": dict(state.error_dict), "ps": dict(state.p_memory_dict), "qs": dict(state.q_memory_dict)}
    return {"steps": state.iter, "random": state.rng.get_state(), **tensors}


def _fill(state: Any, saved: dict[str, Any]) -> None:
    """torch looks these up by the number of a bucket, and makes what it does not find."""
    state.iter = saved["steps"]
    state.rng.set_state(saved["random"])
    state.error_dict, state.p_memory_dict, state.q_memory_dict = (dict(saved[name]) for name in ("errors", "ps", "qs"))
