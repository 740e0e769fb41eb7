"""What PowerSGD remembers: errors that are still to be sent, and the bases of the last step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState


class Saved(TypedDict):
    """A state of torch's. ``random`` is that of its generator."""

    steps: int
    random: Any
    errors: dict[int, Tensor]
    ps: dict[int, Tensor]
    qs: dict[int, Tensor]


@dataclass
class _Known:
    parameters: frozenset[int]
    state: PowerSGDState


class Memory:
    """torch's state of each set of parameters that is sent together, by their shapes.

    A set of the same shapes gets the state that was saved. The errors are each rank's own, and mean
    nothing to other ranks.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._loaded: dict[str, Saved] = {}

    def add(self, module: nn.Module, state: PowerSGDState) -> None:
        """Remember a state for the module's parameters.

        The last one, which holds what ranks tell each other, does not count.
        """
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

    def state_dict(self) -> dict[str, Saved]:
        return self._loaded | {key: _read(known.state) for key, known in self._known.items()}

    def load_state_dict(self, saved: dict[str, Saved], own: bool) -> None:
        """``own`` says whether this rank has written it."""
        self._loaded = {key: one if own else {**one, "errors": {}} for key, one in saved.items()}
        for key in [key for key in self._loaded if key in self._known]:
            _fill(self._known[key].state, self._loaded.pop(key))


def _read(state: PowerSGDState) -> Saved:
    return {
        "steps": state.iter,
        "random": state.rng.get_state(),
        "errors": dict(state.error_dict),
        "ps": dict(state.p_memory_dict),
        "qs": dict(state.q_memory_dict),
    }


def _fill(state: PowerSGDState, saved: Saved) -> None:
    """Torch looks these up by the number of a bucket, and makes what it does not find."""
    state.iter = saved["steps"]
    state.rng.set_state(saved["random"])
    state.error_dict = dict(saved["errors"])
    state.p_memory_dict, state.q_memory_dict = dict(saved["ps"]), dict(saved["qs"])
