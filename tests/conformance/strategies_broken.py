"""Strategies by hand that each forget one thing, for the rule that must find it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from strategies_by_hand import AllReduce
from torch import Tensor, nn
from torch.optim import Optimizer
from torchbus.bus.base import hookimpl
from torchbus.patches.backward import BackwardCall
from torchbus.runtime.context import Context


class ForgetsWeights(AllReduce):
    """Each rank counts the same, however many samples it has."""

    def _weight(self, call: BackwardCall) -> float:
        return 1.0


class ComparesNothing(AllReduce):
    """Any two backwards of two ranks are taken for the same one."""

    def _compare(self) -> None:
        pass


class DrawsAlike(AllReduce):
    """All ranks draw the same random numbers in training."""

    def _split(self) -> None:
        pass


class SavesHalf(AllReduce):
    """Each rank steps its half of the parameters, and nobody gathers the optimizer's states."""

    def __init__(self) -> None:
        super().__init__()
        self.set_aside: dict[int, Tensor | None] = {}

    def _owner(self, p: Tensor) -> int:
        return list(self.parameters).index(id(p)) % self.session.world_size

    @hookimpl
    def before_optimizer_step(self, optimizer: Optimizer) -> None:
        held = [p for group in optimizer.param_groups for p in group["params"]]
        others = [p for p in held if self._owner(p) != self.session.rank]
        self.set_aside = {id(p): p.grad for p in others}
        for p in others:
            p.grad = None

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self.steps += 1
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = self.set_aside.get(id(p), p.grad)
                dist.broadcast(p.data, self._owner(p))


class CountsTheRepeated(AllReduce):
    """A rank that repeats samples has 0 times its gradient."""

    def _reduce(self, p: Tensor, old: Tensor | None, counts: bool) -> None:
        super()._reduce(p, old, True)


class KeepsItsLoss(AllReduce):
    """The loss stays that of the rank's samples."""

    def _tell(self, loss: Tensor, part: Tensor) -> None:
        pass


class KeepsItsValues(AllReduce):
    """Each rank begins with its own parameters."""

    def _send(self, tensor: Tensor) -> None:
        pass


class ForgetsTheOld(AllReduce):
    """A backward replaces the gradients that are there."""

    def _reduce(self, p: Tensor, old: Tensor | None, counts: bool) -> None:
        super()._reduce(p, None, counts)


class TakesThemOnce(AllReduce):
    """Parameters that come after the first backward are not reduced."""

    @hookimpl(tryfirst=True)
    def parameters_added(self, parameters: list[Tensor]) -> None:
        if self.session.job is not None and not self.session.job.backwards:
            super().parameters_added(parameters)

    @hookimpl
    def model_found(self, model: nn.Module) -> None:
        if self.session.job is not None and not self.session.job.backwards:
            super().model_found(model)


class ShowsItsOwn(AllReduce):
    """Holds a module that no loop has made."""

    @hookimpl
    def session_start(self, session: Context) -> None:
        self.own = nn.Linear(1, 1)


class LeavesItsChange(AllReduce):
    """Replaces a function for good."""

    @hookimpl
    def session_start(self, session: Context) -> None:
        original = torch.stack
        torch.stack = lambda *args, **words: original(*args, **words)


class EvaluatesUnlike(AllReduce):
    """Draws in evaluation from what the rank draws from in training."""

    @hookimpl
    def mode_changed(self, model: nn.Module, training: bool) -> None:
        pass


class Doubles:
    """A plugin that changes the numbers of a loop."""

    @hookimpl
    def before_optimizer_step(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(2)
