"""Schedule-free optimizers, which have weights of their own for evaluation."""

from __future__ import annotations

from typing import Protocol, cast
from weakref import WeakKeyDictionary

from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import Context, UsageError, expect, hookimpl


class HasModes(Protocol):
    """An optimizer as those of the package schedulefree."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


class ScheduleFree:
    """Calls ``optimizer.train()`` and ``optimizer.eval()`` as the loop calls those of its models.

    Args:
        schedule_free: whether to do so. The optimizers must have both methods.

    Source: Defazio et al., https://arxiv.org/abs/2405.15682
    """

    def __init__(self, *, schedule_free: bool = True) -> None:
        expect("schedule_free", schedule_free, bool, "True or False")
        self._active = schedule_free
        self._optimizers: WeakKeyDictionary[Optimizer, list[Module]] = WeakKeyDictionary()

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if not self._active or optimizer is None or not self._session.captures(optimizer):
            return
        if not hasattr(optimizer, "train") or not hasattr(optimizer, "eval"):
            raise UsageError(
                f"schedule_free=True: {type(optimizer).__name__} has no train() and eval(). Use an"
                " optimizer of the package schedulefree, or leave the option out"
            )
        self._optimizers[optimizer] = []

    @hookimpl
    def optimizer_ready(self, optimizer: Optimizer) -> None:
        """Begin to train: all groups are there."""
        if optimizer in self._optimizers:
            cast(HasModes, optimizer).train()

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]] | None:
        how = "optimizers: train() and eval() are called as those of their models"
        return {"schedule-free": [how]} if self._active else None

    @hookimpl
    def mode_changed(self, model: Module, training: bool) -> None:
        inside = {id(part) for part in model.modules()}
        for optimizer, models in self._optimizers.items():
            models = models or self._find(optimizer)
            if models and all(id(one) in inside for one in models):
                modes = cast(HasModes, optimizer)
                (modes.train if training else modes.eval)()

    def _find(self, optimizer: Optimizer) -> list[Module]:
        """The models of an optimizer, which are looked for once."""
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        self._optimizers[optimizer] = found = objects.models_of(parameters)
        return found
