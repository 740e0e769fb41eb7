"""``backward`` under fsdp: torch reduces the gradients; what remains is the weight of this rank's samples, and the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torchbus import Session, hookimpl
from torchbus.errors import Unsupported
from torchbus.seams.backward import BackwardCall

from torchbus_sharded.loose import LooseTensors
from torchbus_sharded.models import ShardedModels

DISCOVERY_BACKWARDS = 3


class ShardedBackward:
    """Owns ``backward``."""

    def __init__(self, session: Session, models: ShardedModels, loose: LooseTensors, loss_reduction: str) -> None:
        assert session.job is not None
        self._loose = loose
        self._session = session
        self._models = models
        self._loss_reduction = loss_reduction
        self._job = session.job

    @hookimpl
    def run_backward(self, call: BackwardCall, engine: Callable[..., None]) -> None:
        if call.create_graph:
            raise Unsupported("backward(create_graph=True) under strategy='fsdp': gradients are in parts that have no graph; use strategy='ddp'")
        if call.inputs:
            raise Unsupported("backward(inputs=) under strategy='fsdp': what is asked for are parts, which are not in the graph; use strategy='ddp'")
        weight = self._weight(call)
        tensors, gradients = call.start(weight)
        self._job.waiting = ("backward", self._job.backwards + 1)
        self._models.agreement.meet(f"backward {self._job.backwards + 1}")
        reached = self._models.begin_backward()
        with self._loose.averaged():
            engine(tensors, gradients, call.retain_graph, False, inputs=call.inputs)
        self._models.end_backward(reached, counts=weight != 0)
        loss = call.loss
        if loss is not None and loss.dim() == 0 and not loss.is_leaf and not loss._is_view() and not call.retain_graph:
            loss.data.copy_(self._mean(loss, weight))
        self._models.share_buffers()
        reached.settle()
        self._models.whole.refuse_gradients()
        self._job.waiting = None
        self._job.backwards += 1
        if not self._session.random.is_split:
            self._session.random.split(self._session.rank)
        if self._job.backwards == DISCOVERY_BACKWARDS:
            self._session.end_discovery()

    @hookimpl
    def backward_failed(self) -> None:
        self._models.passes.reset_all()

    def _weight(self, call: BackwardCall) -> float:
        weight = self._session.share.weight if call.weight is None else call.weight
        return weight if self._loss_reduction == "mean" else float(self._session.world_size if weight else 0)

    def _mean(self, loss: Tensor, weight: float) -> Tensor:
        """Over the samples of all ranks; a rank without any of its own adds nothing, whatever its loss is."""
        return self._session.reduce(loss.detach() * weight if weight else torch.zeros_like(loss))

    @hookimpl
    def mode_changed(self, model: Module, training: bool) -> None:
        self._session.random.use("own" if training else "evaluation")

    @hookimpl
    def scheduler_metric(self, metric: Any) -> Any:
        return self._session.reduce(metric)
