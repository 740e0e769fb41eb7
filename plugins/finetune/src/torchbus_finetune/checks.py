"""What can't be right, said before the first gradient."""

from __future__ import annotations

from collections.abc import Callable

from torch.nn import Module
from torchbus.plugin import Context, Unsupported, UsageError, expect, hookimpl

from torchbus_finetune import names
from torchbus_finetune.frozen import FrozenModels
from torchbus_finetune.schedule import Schedule


def rate(factor: float) -> float:
    """Return the option ``unfreeze_lr``, or raise UsageError."""
    expect("unfreeze_lr", factor, (int, float), "what learning rates are multiplied by")
    if not 0 < factor < float("inf"):
        raise UsageError(f"unfreeze_lr={factor}: it must be positive")
    return factor


class FirstBackward:
    """Checks the schedule against the models once, when the loop first calls backward.

    ``problem`` returns what only the plugin knows to be wrong, or "".
    """

    def __init__(
        self,
        session: Context,
        schedule: Schedule,
        frozen: FrozenModels,
        problem: Callable[[], str],
    ) -> None:
        self._session = session
        self._schedule = schedule
        self._frozen = frozen
        self._problem = problem

    @hookimpl(tryfirst=True)
    def before_backward(self) -> None:
        self._session.bus.unregister(self)
        refuse_unknown(self._schedule, self._frozen)
        if self._problem():
            raise UsageError(self._problem())


def refuse_strategy(session: Context) -> None:
    """Raise Unsupported under a strategy whose parameters stay frozen, if they ever were."""
    if not all(getattr(plugin, "unfreezes", True) for _, plugin in session.bus.plugins()):
        raise Unsupported(
            f"unfreeze=... with strategy={session.options['strategy']!r}: it trains only parameters"
            " that are not frozen at the first forward. Use strategy='ddp' or 'fsdp'"
        )


def refuse_unknown(schedule: Schedule, frozen: FrozenModels) -> None:
    """Raise UsageError for an entry that names nothing in any model."""
    named = [entry for model in frozen.models for entry, own in frozen.named(model).items() if own]
    for entry in schedule:
        if entry not in named:
            near = ", ".join(map(repr, names.nearest(entry.pattern, frozen.models)))
            raise UsageError(
                f"unfreeze={{{entry.pattern!r}: ...}} names no parameter of a model that an"
                " optimizer trains, or none that other entries leave to it. The nearest modules:"
                f" {near or 'none'}"
            )


def refuse_all_frozen(model: Module) -> None:
    """Raise UsageError if nothing of a model would be trained: backward would raise."""
    parameters = list(model.parameters())
    if not any(one.requires_grad for one in parameters):
        raise UsageError(
            f"unfreeze=...: all {len(parameters)} parameter tensors of {type(model).__name__} are"
            " frozen, so backward would find nothing to train. Leave out of the schedule what is"
            " trained from the beginning, such as the head"
        )
