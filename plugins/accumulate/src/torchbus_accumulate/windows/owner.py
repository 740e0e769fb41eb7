"""Accumulation windows: a real step at the end of each, and no communication before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torchbus.plugin import BackwardCall, Context, LoaderIterator, hookimpl

from torchbus_accumulate import position
from torchbus_accumulate.averages import WindowSums
from torchbus_accumulate.position import BatchUse, WindowPosition
from torchbus_accumulate.schedules import Schedules
from torchbus_accumulate.windows.changes import WindowChanges
from torchbus_accumulate.windows.saved import refuse_between, restore, state_of
from torchbus_accumulate.windows.steps import RealSteps
from torchbus_accumulate.windows.sums import WindowSum
from torchbus_accumulate.windows.weights import Weights, WindowEnd
from torchbus_strategy.batches import TrackedBatch
from torchbus_strategy.compat import is_divided


class Steady:
    """Gives every backward the weight of the first one in its window.

    This is right for a loop with one optimizer, without a loader, and without calls of
    ``s.backward_weight``. The share of the data and the optimizers must stay the same. It saves a
    few microseconds per batch.
    """

    def __init__(
        self,
        session: Context,
        optimizers: WindowSums,
        weights: Weights,
        ending: WindowEnd,
        size: int,
    ) -> None:
        """Created once the first backward of a window of ``size`` batches has its weight."""
        self._session, self._share = session, session.share
        self._optimizers, self._sums, self._sum = optimizers, optimizers.sums, optimizers.sums[0]
        self._weights, self._factor, self._size = weights, weights.factor, size
        self._ending = ending

    def weigh(self, call: BackwardCall) -> bool:
        """Set the weight of a backward. Return False if it may differ from the first one's."""
        if self._session.share is not self._share or self._optimizers.sums is not self._sums:
            return False
        one, weights = self._sum, self._weights
        last = one.calls + 1 >= self._size
        weights.factor = self._factor
        if not weights.is_sum:
            weights.count(call, None)
        one.before_backward(None, is_other_batch=False)
        self._ending.begin(call, last)
        return True


class Windows:
    """Weights each backward by its place in the window.

    The option counts batches of the loader that feeds the backwards. In a loop without a loader, it
    counts steps of an optimizer.
    """

    def __init__(self, session: Context, windows: Mapping[int, int], place: BatchUse) -> None:
        self._session = session
        self._schedule = windows
        self._place = place
        self._position = WindowPosition(windows, session.batches)
        self._weights = Weights(session, self._position)
        self._optimizers = WindowSums(session)
        self.local_sums = LocalSums(session, self._optimizers)
        self._schedules = Schedules(session, self._optimizers, self._position)
        self._ending = WindowEnd(session, self._optimizers, self._weights)
        self._changes = WindowChanges(session, self._optimizers)
        self._steps = RealSteps(
            session,
            self._optimizers,
            place,
            self._position,
            self._weights,
            self._ending,
            self._changes,
        )
        session.bus.register(self._steps, "accumulate.steps")
        self._begun = False
        self._steady: Steady | None = None

    # Which batch ---------------------------------------------------------------------------------

    @hookimpl
    def loader_opened(self, iterator: LoaderIterator) -> None:
        if torch.is_grad_enabled():
            iterator.find_last()

    @hookimpl
    def loader_start(self, loader: DataLoader[object]) -> None:
        """Step with the open window of a pass that the loop left by ``break``.

        A pass under ``no_grad`` may be an evaluation in the middle of the window, and leaves it
        open unless the loop has dropped the iterator of the training pass.
        """
        if self._position.left or (
            torch.is_grad_enabled() and self._position.is_in(loader) and not self._position.goes_on
        ):
            self._steps.flush()

    @hookimpl
    def loader_end(self, loader: DataLoader[object]) -> None:
        if self._position.is_in(loader) and self._position.ended and not self._position.goes_on:
            self._steps.flush()
            self._place.leave()
            self._position.end_pass()
            for one in self._optimizers.sums:
                one.skipped = False

    @hookimpl(tryfirst=True)
    def session_end(self, error: BaseException | None) -> None:
        if error is None:
            self._steps.flush()

    # Backward ------------------------------------------------------------------------------------

    def weigh(self, call: BackwardCall, tokens: float | None) -> None:
        """Set the weight of a backward, and whether ranks communicate in it."""
        self._changes.before_backward()
        steady, batch = self._steady, self._place.latest
        if steady is None or batch or tokens is not None or not steady.weigh(call):
            self._weigh(call, tokens, batch)

    def _weigh(self, call: BackwardCall, tokens: float | None, batch: TrackedBatch | None) -> None:
        if not self._begun:
            self._begin()
        sums = self._optimizers.sums
        before = self._place.counted
        if batch is not None:
            self._steps.advance(batch, self._place.is_last)
        is_other_batch = self._place.counted is not before
        for one in sums:
            one.begin(is_other_batch)
            if is_other_batch:
                one.note_batches(call, sums)
        if batch is not None:
            self._weights.batch_samples = float((batch.share and batch.share.count) or batch.rows)
            first, last = self._position.index == 1, self._position.last
        else:
            first, last = not any(one.calls for one in sums), self._steps.end_by_count(sums)
        total = self._weights.weigh(call, tokens, batch, sums, first, last)
        for one in sums:
            one.before_backward(total, is_other_batch)
        self._ending.begin(call, last)
        is_typical = first and not last and batch is None and tokens is None and len(sums) == 1
        self._steady = (
            Steady(
                self._session, self._optimizers, self._weights, self._ending, self._position.size
            )
            if is_typical
            else None
        )

    @hookimpl
    def after_backward(self, call: BackwardCall) -> None:
        self._ending.scale_sums(call)

    @hookimpl
    def backward_failed(self, call: BackwardCall) -> None:
        self._ending.scale_sums(call)
        for one in self._optimizers.sums:
            one.backward_failed()

    def _begin(self) -> None:
        self._begun = True
        self._optimizers.find()

    # Schedulers and clipping ---------------------------------------------------------------------

    @hookimpl
    def skip_scheduler(self, scheduler: LRScheduler) -> bool | None:
        one = self._optimizers.of.get(id(getattr(scheduler, "optimizer", None)))
        if one is not None and self._position.left:
            self._steps.flush()
            one.skipped = False
        if one is not None:
            self._schedules.step(scheduler, one.skipped)
        return True if one is not None and one.skipped else None

    @hookimpl
    def clip_gradients(self, run: Callable[[float], Tensor]) -> Tensor | None:
        """In the middle of a window, only compute the norm. Gradients are clipped at its end."""
        return run(math.inf) if self._is_open() else None

    @hookimpl
    def clip_gradient_values(self) -> bool | None:
        """In the middle of a window, clip nothing."""
        return True if self._is_open() else None

    def _is_open(self) -> bool:
        """Whether the next step will be skipped, as its window has not reached its end."""
        if not self._optimizers.sums:
            return False
        return not (
            self._position.last
            if self._place.recent
            else self._steps.end_by_count(self._optimizers.sums)
        )

    @property
    def has_begun_one(self) -> bool:
        """Whether a window has begun, and its last batch has not come yet."""
        return self._position.index > 0 and not self._position.last

    # State ---------------------------------------------------------------------------------------

    def saved(self) -> dict[str, object]:
        sums, weights = self._optimizers.sums, self._weights
        position = self._position.state_dict()
        refuse_between(sums, self._position)
        found = {"expected": weights.expected, "weights": weights.saved()}
        if self._session.world.divides_anew:  # the loop repeats the batches of an open window
            return found | {"position": position | {"index": 0}, "sums": [], "schedules": []}
        return found | {
            "position": position,
            "sums": [state_of(one, self._session) for one in sums],
            "schedules": self._schedules.saved(),
        }

    def put_back(self, state: Mapping[str, Any]) -> None:
        if len(self._optimizers.sums) < len(state["sums"]):
            self._begin()
        restore(self._optimizers.sums, state["sums"])
        self._position.load_state_dict(state["position"])
        self._weights.put_back(state["expected"], state.get("weights"))
        self._schedules.put_back(state.get("schedules", []))
        self._changes.forget()
        self._steady = None

    # Explain -------------------------------------------------------------------------------------

    @hookimpl
    def describe(self, thing: object) -> str | None:
        known = isinstance(thing, Optimizer) and id(thing) in self._optimizers.of
        return f"one real step for {self._position.size} calls of step()" if known else None

    def lines(self) -> list[str]:
        how = (
            "losses are sums, and are added up"
            if self._weights.is_sum
            else self._weights.note or "gradients are weighted by samples"
        )
        sizes = position.describe(self._schedule, self._position.size)
        line = (
            f"batches per real step: {sizes}; step(), zero_grad(), schedulers and clipping wait for"
            " the end of the window, "
        )
        return [f"{line}{how}, nothing is communicated in between", *self._schedules.lines()]


class LocalSums:
    """The part of the checkpoint state that differs between ranks, loaded after the common part.

    Each rank loads only its own part, and only if the number of ranks is the same.
    """

    def __init__(self, session: Context, optimizers: WindowSums) -> None:
        self._session = session
        self._optimizers = optimizers

    @property
    def _who(self) -> list[int]:
        return [self._session.rank, self._session.world_size]

    def state_dict(self) -> dict[str, object]:
        sums = self._optimizers.sums if self._session.world_size > 1 else ()
        return {"who": self._who, "sums": [_of(one) for one in sums]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["who"] == self._who:
            for one, ours in zip(self._optimizers.sums, state["sums"], strict=False):
                if ours["calls"] and ours["calls"] == one.calls:
                    _restore(one, ours)


def _of(one: WindowSum) -> dict[str, object]:
    """Return this rank's part of the state. Sharded gradients are in the common state."""
    gradients = [
        None if gradient is None or is_divided(gradient) else gradient.detach()
        for gradient in one.committed()
    ]
    numbers = {
        "calls": one.calls,
        "weight": one.weight,
        "samples": one.samples,
        "mass": one.mass,
        "whole": one.whole,
        "counted": one.counted,
    }
    return {**numbers, "gradients": gradients}


def _restore(one: WindowSum, saved: Mapping[str, Any]) -> None:
    gradients = [
        theirs if theirs is not None and is_divided(theirs) else mine
        for theirs, mine in zip(one.committed(), saved["gradients"], strict=True)
    ]
    one.restore(saved, gradients)
    one.counted = saved["counted"]
