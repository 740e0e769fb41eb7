"""``optimizer.state_dict()`` is whole on all ranks; each keeps the state of its own parameters."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import Context, hookimpl

from torchbus_pipeline.meeting import Meeting
from torchbus_pipeline.model.elsewhere import Elsewhere

CPU = torch.device("cpu")


class WholeOptimizers:
    """Gathers the states of all places. All ranks call it."""

    def __init__(self, session: Context, meeting: Meeting) -> None:
        self._session, self._meeting = session, meeting
        self._known: list[weakref.ref[Optimizer]] = []

    @hookimpl(trylast=True)
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if optimizer is None or not self._session.captures(optimizer):
            return
        if not any(reference() is optimizer for reference in self._known):
            self._known.append(weakref.ref(optimizer))
            stack = self._session.on_close
            stack.callback(optimizer.register_state_dict_post_hook(self._gather).remove)
            stack.callback(optimizer.register_load_state_dict_post_hook(_keep_own).remove)
        _keep_own(optimizer)

    def keep_own(self, cut: object) -> None:
        """A model was divided: drop states that now belong to other ranks."""
        for optimizer in [found for known in self._known if (found := known()) is not None]:
            _keep_own(optimizer)

    def _gather(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        if not self._session.is_inside:
            return state_dict
        self._meeting.meet_in_pipeline(f"the state_dict of {type(optimizer).__name__}")
        return {**state_dict, "state": self._whole(state_dict["state"])}

    def _whole(self, state: dict[Any, Any]) -> dict[Any, Any]:
        whole = dict(state)
        for part in self._meeting.told_in_pipeline(_to(state, CPU)):
            whole = {**part, **whole}
        return dict(sorted(whole.items()))

    def make_whole(self) -> None:
        """Give all ranks all states. All ranks call it, while parameters are still elsewhere."""
        for optimizer in [found for known in self._known if (found := known()) is not None]:
            own = {
                index: optimizer.state[one]
                for index, one in enumerate(_parameters(optimizer))
                if optimizer.state.get(one)
            }
            whole = self._whole(own)
            for index, one in enumerate(_parameters(optimizer)):
                if index in whole and index not in own:
                    optimizer.state[one] = _to(whole[index], one.device)


def _keep_own(optimizer: Optimizer) -> None:
    """Drop the state of other ranks' parameters: loaded, or from before the block."""
    for parameter in _parameters(optimizer):
        if isinstance(parameter, Elsewhere):
            optimizer.state.pop(parameter, None)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _to(value: object, device: torch.device) -> object:
    """The same nested dicts, with their tensors on this device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _to(item, device) for key, item in value.items()}
    return value
