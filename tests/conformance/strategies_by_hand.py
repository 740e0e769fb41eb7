"""Two correct strategies that average gradients by all-reduce: one inherits from Strategy, and one
does everything by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.bus.base import hookimpl
from torchbus.errors import RanksDiverged, Unsupported
from torchbus.patches.backward import BackwardCall
from torchbus.runtime.context import Context
from torchbus.world import World

from torchbus_strategy.strategy import Strategy

DISCOVERY_BACKWARDS = 3


class Inherits(Strategy):
    """Says only how gradients meet."""

    name = "inherits"
    engine = "gradients are averaged by all-reduce"

    def average(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()


class AllReduce:
    """Gives each loop the numbers of one process, or refuses it."""

    owns = ("strategy",)
    companions = ("sampler", "process_group")
    divides_data = True
    loss_reduction, loss_weight = "mean", "samples"

    def __init__(self) -> None:
        self.parameters: dict[int, Tensor] = {}
        self.steps = 0

    @hookimpl
    def launch(self, session: Context) -> World:
        self.session = session
        return session.start_ranks()

    # Parameters ----------------------------------------------------------------------------------

    @hookimpl(tryfirst=True)
    def parameters_added(self, parameters: list[Tensor]) -> None:
        models = objects.models_of(parameters)
        self._take([*parameters, *(p for model in models for p in model.parameters())], models)

    @hookimpl
    def model_found(self, model: Module) -> None:
        self._take(list(model.parameters()), [model])

    def _take(self, parameters: Sequence[Tensor], models: Sequence[Module]) -> None:
        """Copy rank 0's values."""
        new = {id(p): p for p in parameters if id(p) not in self.parameters}
        if new:
            for tensor in [*new.values(), *(b for model in models for b in model.buffers())]:
                self._send(tensor)
        self.parameters |= new

    def _send(self, tensor: Tensor) -> None:
        dist.broadcast(tensor.data, 0)

    # Backward ------------------------------------------------------------------------------------

    @hookimpl
    def run_backward(self, call: BackwardCall, engine: Callable[..., None]) -> None:
        job = self.session.job
        assert job is not None
        if not call.sync or call.create_graph or call.inputs is not None:
            raise Unsupported("AllReduce takes neither s.no_sync(), create_graph=True nor inputs=")
        job.wait_in("backward", job.backwards + 1)
        try:
            self._compare()
            self._average(call, engine)
        finally:
            job.go_on()
        job.count_backward()
        self._split()
        if job.backwards == DISCOVERY_BACKWARDS:
            self.session.end_discovery()

    def _average(self, call: BackwardCall, engine: Callable[..., None]) -> None:
        trained = [p for p in self.parameters.values() if p.requires_grad]
        weight = self._weight(call)
        kept = [p.grad for p in trained]
        for p in trained:
            p.grad = None
        loss = None if call.loss is None else call.loss.detach().clone()
        try:
            engine(*call.start(weight), call.retain_graph, False)
        except BaseException:
            for p, old in zip(trained, kept, strict=True):
                p.grad = old
            raise
        for p, old in zip(trained, kept, strict=True):
            self._reduce(p, old, bool(weight))
        if loss is not None and not call.retain_graph:
            self._tell(call.loss, loss * weight if weight else torch.zeros_like(loss))

    def _reduce(self, p: Tensor, old: Tensor | None, counts: bool) -> None:
        """The mean over ranks of what this backward has made, added to what was there."""
        used = torch.tensor(float(p.grad is not None and counts))
        dist.all_reduce(used)
        new = p.grad if p.grad is not None and counts else torch.zeros_like(p)
        dist.all_reduce(new)
        p.grad = old if not used else new / self.session.world_size + (0 if old is None else old)

    def _tell(self, loss: Tensor, part: Tensor) -> None:
        loss.data.copy_(self.session.reduce(part, "mean"))

    def _weight(self, call: BackwardCall) -> float:
        return self.session.share.weight if call.weight is None else call.weight

    def _compare(self) -> None:
        job = self.session.job
        assert job is not None
        place = (job.backwards, self.steps, self.session.share.position)
        places = self.session.all_gather_object(place)
        if len(set(places)) > 1:
            raise RanksDiverged(f"the ranks are at different places of the loop: {places}")

    def _split(self) -> None:
        if not self.session.random.is_split:
            self.session.random.split(self.session.rank)

    # Around it -----------------------------------------------------------------------------------

    @hookimpl
    def mode_changed(self, model: Module, training: bool) -> None:
        self.session.random.use("own" if training else "evaluation")

    @hookimpl
    def scheduler_metric(self, metric: Any) -> Tensor:
        return self.session.reduce(metric)

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self.steps += 1
