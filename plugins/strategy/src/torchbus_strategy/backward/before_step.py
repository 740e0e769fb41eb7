"""Averages gradients before an optimizer step that no synchronised backward has made."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import Context, hookimpl

from torchbus_strategy.groups import Rendezvous
from torchbus_strategy.parameters.trained import TrainedParameters


@dataclass
class _Sentinel:
    """A parameter, and the gradient that the last synchronised backward has ``left``."""

    parameter: Tensor
    optimizer: weakref.ref[Optimizer]
    left: Tensor | None = None


class Assigned:
    """Detects assigned gradients by two parameters of each optimizer: the smallest one of each
    half, because a loop may assign gradients to a body and not to its heads.

    Holding their gradients costs little. Each is the same object until the loop assigns another.
    """

    def __init__(self) -> None:
        # by the optimizer's id, because listing a WeakKeyDictionary in every step takes 10 us
        self._sentinels: dict[int, list[_Sentinel]] = {}

    def watch(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if trained:
            key = id(optimizer)
            lost = weakref.ref(optimizer, functools.partial(self._sentinels.pop, key))
            halves = trained[: len(trained) // 2], trained[len(trained) // 2 :]
            self._sentinels[key] = [
                _Sentinel(min(half, key=Tensor.numel), lost) for half in halves if half
            ]

    def synchronised(self) -> None:
        """Note that the present gradients are common to all ranks."""
        for sentinels in tuple(self._sentinels.values()):
            for sentinel in sentinels:
                sentinel.left = sentinel.parameter.grad

    def found(self, optimizer: Optimizer) -> bool:
        """Whether the loop has assigned the optimizer's gradients since ``synchronised``."""
        return any(
            sentinel.parameter.grad is not None and sentinel.parameter.grad is not sentinel.left
            for sentinel in self._sentinels.get(id(optimizer), ())
        )


class StepAveraging:
    """Averages the gradients of ``torch.autograd.grad`` and of backwards under ``s.no_sync()``.

    ``local`` holds the ids of parameters with gradients that only this rank has. ``average`` gets
    the parameters, and this rank's weight in the mean; all ranks call it.
    """

    def __init__(
        self,
        session: Context,
        trained: TrainedParameters,
        local: set[int],
        average: Callable[[Sequence[Tensor], float], None],
    ) -> None:
        assert session.job is not None
        self._session = session
        self._job = session.job
        self._trained = trained
        self._average_all = average
        self._local = local
        self._assigned = Assigned()
        self._place = Rendezvous(session)
        self._early: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._has_early = False
        # by the optimizer's id, because a weak dictionary takes microseconds in every step
        self._averaged_at: dict[int, int] = {}
        self._known: dict[int, weakref.ref[Optimizer]] = {}

    def average_now(self, optimizer: Optimizer) -> None:
        """Average gradients of backwards under ``s.no_sync()`` now. All ranks call it.

        It is for strategies that decide about the step from the averaged gradients.
        """
        self._early.discard(optimizer)
        held = self._local_of(optimizer) if self._local else None
        if held:
            self._average(optimizer, 1.0)
            self._local -= held
            self._assigned.synchronised()
            self._early.add(optimizer)
            self._has_early = True

    def synchronised(self) -> None:
        """Note that a backward has made the gradients common to all ranks."""
        self._assigned.synchronised()

    @hookimpl(trylast=True)
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if optimizer is not None and self._session.captures(optimizer):
            self._assigned.watch(optimizer, self._shared_by(optimizer))

    @hookimpl
    def gradients_ready(self, optimizer: Optimizer, closure: object) -> None:
        if self._has_early and optimizer in self._early:
            return self._early.discard(optimizer)
        key, backwards = id(optimizer), self._job.backwards
        if key not in self._known:
            self._know(optimizer)
        is_second = self._averaged_at.get(key, 0) == backwards and any(
            parameter.grad is not None for parameter in self._shared_by(optimizer)
        )
        self._averaged_at[key] = backwards
        held = self._local_of(optimizer) if self._local else None
        if (
            closure is None
            and (held or is_second or self._assigned.found(optimizer))
            and self._session.captures(optimizer)
        ):
            self._average(optimizer, 1.0 if held else self._session.share.weight)
            self._local -= held or set()
            self._assigned.synchronised()

    def _know(self, optimizer: Optimizer) -> None:
        key = id(optimizer)

        def forget(_: object) -> None:
            del self._known[key]
            self._averaged_at.pop(key, None)

        self._known[key] = weakref.ref(optimizer, forget)

    def _average(self, optimizer: Optimizer, weight: float) -> None:
        shared = self._shared_by(optimizer)
        if shared:
            name = type(optimizer).__name__
            self._place.wait(f"{name}.step() after backward", self._job.backwards)
            self._average_all(shared, weight)

    def _local_of(self, optimizer: Optimizer) -> set[int]:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return held & self._local

    def _shared_by(self, optimizer: Optimizer) -> list[Tensor]:
        """Return the optimizer's parameters, except those that belong to this rank's samples."""
        return [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter not in self._trained.per_rank
        ]
