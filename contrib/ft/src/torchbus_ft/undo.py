"""A step with a closure is made before its verdict is known, and is undone if it was dropped."""

from __future__ import annotations

import copy

import torch
from torch.optim import Optimizer
from torchbus.plugin import Context

from torchbus_ft.live import Live


class Undo:
    """Parameters, the optimizer's state and the counters, as they were before the step."""

    def __init__(self, optimizer: Optimizer, session: Context, live: Live) -> None:
        self._optimizer = optimizer
        self._session = session
        self._live = live
        self._parameters = [
            (one, one.detach().clone())
            for group in optimizer.param_groups
            for one in group["params"]
        ]
        self._state = copy.deepcopy(optimizer.state_dict())
        self._counters = live.counters()

    @torch.no_grad()
    def restore(self) -> None:
        """Go back."""
        for one, before in self._parameters:
            one.data.copy_(before)
        self._optimizer.load_state_dict(self._state)
        self._live.count(self._counters)
