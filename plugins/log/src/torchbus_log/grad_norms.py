"""The norms of gradients by layer or by parameter, at log points."""

from __future__ import annotations

import math
import weakref
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from torchbus.plugin import Context, hookimpl

from torchbus_log.gatherer import Gatherer, How
from torchbus_strategy import sharding

Parts = Literal["layer", "parameter"]


class GradNorms:
    """Logs norms of the gradients that a step uses: averaged over ranks, unscaled and clipped.

    Strategies whose ranks hold parts of gradients answer for the whole of them, as they do to
    ``clip_grad_norm_``. So all ranks ask for the same parts, even those that have no gradient.
    """

    hears_trials = False

    def __init__(self, session: Context, gatherer: Gatherer, every: int, parts: Parts) -> None:
        self._session = session
        self._gatherer = gatherer
        self._every = every
        self._parts = parts
        self._steps = session.steps.follow()
        self._named: weakref.WeakKeyDictionary[Optimizer, dict[str, list[Tensor]]] = (
            weakref.WeakKeyDictionary()
        )

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if optimizer is not None:
            self._named.pop(optimizer, None)

    @hookimpl(trylast=True)
    def gradients_ready(self, optimizer: Optimizer) -> None:
        count = self._steps.count
        step = count + (not count or self._steps.has_stepped(optimizer))
        if step % self._every == 0 and self._session.captures(optimizer):
            if optimizer not in self._named:
                self._named[optimizer] = self._parts_of(optimizer)
            for name, parameters in self._named[optimizer].items():
                if any(one.requires_grad for one in parameters):
                    self._gatherer.add(name, self._norm(parameters), How(step=step))

    def _parts_of(self, optimizer: Optimizer) -> dict[str, list[Tensor]]:
        place = len(self._named)
        label = "grad_norm" if place == 0 else f"grad_norm_{place + 1}"
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        found: dict[str, list[Tensor]] = {}
        for index, (name, one) in enumerate(
            zip(self._session.names_of(parameters), parameters, strict=True)
        ):
            part = name.rpartition(".")[0] if self._parts == "layer" else name
            found.setdefault(f"{label}/{part or f'parameter{index}'}", []).append(one)
        return found

    @torch.no_grad()
    def _norm(self, parameters: list[Tensor]) -> Tensor:
        def run(max_norm: float) -> Tensor:
            gradients = [one.grad for one in parameters if one.grad is not None]
            dense = [one.coalesce().values() if one.is_sparse else one for one in gradients]
            norm: Tensor = sharding.whole(get_total_norm(dense))
            return norm

        answer = self._session.bus.hook.clip_gradients(
            parameters=parameters, max_norm=math.inf, norm_type=2.0, run=run
        )
        return (run(math.inf) if answer is None else answer).detach().reshape(())
