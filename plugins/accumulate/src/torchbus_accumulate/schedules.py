"""Makes learning-rate schedules and averages of weights follow real steps."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping

import torch
from torch.nn import Module
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
)
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, IterableDataset
from torchbus import objects
from torchbus.plugin import Context, hookimpl, warn

from torchbus_accumulate._compat import (
    STEP_COUNT,
    children,
    index_sampler,
    milestones,
    require_step_count,
)
from torchbus_accumulate.averages import WindowSums
from torchbus_accumulate.loop_around import loop_around
from torchbus_accumulate.messages import ENDED
from torchbus_accumulate.position import WindowPosition
from torchbus_strategy.user_code import users_frames

DEPTH = 4
LENGTHS: dict[type[LRScheduler], str] = {
    CosineAnnealingLR: "T_max",
    OneCycleLR: "total_steps",
    PolynomialLR: "total_iters",
    LinearLR: "total_iters",
}
AVERAGES = (
    "an average of weights (EMA) that the loop updates after step() is updated for every"
    " batch: update it in optimizer.register_step_post_hook(...), which waits for real steps, or"
    " use torch's AveragedModel"
)


class Schedules:
    """Steps each scheduler when its optimizer makes a real step.

    A scheduler steps once, or, if its length counts batches, once for each batch of the window. So
    each schedule ends with the loop, and each real step has the right learning rate.

    The loops around the step show how many batches the script will use. Scripts write lengths in
    batches, ``epochs * len(loader)``, or in steps, the same ``// accumulate_grad_batches``. If the
    number of batches is unknown, a multiple of ``len(loader)`` counts batches.
    """

    def __init__(self, session: Context, optimizers: WindowSums, position: WindowPosition) -> None:
        self._session, self._optimizers, self._position = session, optimizers, position
        self._before: weakref.WeakSet[LRScheduler] = weakref.WeakSet(objects.alive(LRScheduler))
        self._asked: list[
            tuple[weakref.ref[DataLoader[object]], int, weakref.WeakSet[LRScheduler]]
        ] = []
        self._by_batches: weakref.WeakKeyDictionary[LRScheduler, str] = weakref.WeakKeyDictionary()
        self._ends: weakref.WeakKeyDictionary[LRScheduler, int] = weakref.WeakKeyDictionary()
        self._skipped: weakref.WeakKeyDictionary[LRScheduler, int] = weakref.WeakKeyDictionary()
        self._loaded: list[int] = []
        self._parts: weakref.WeakSet[LRScheduler] = weakref.WeakSet()
        self._walking = False
        session.bus.register(self, "accumulate.schedules")
        session.replace(AveragedModel, "update_parameters", self._skip_average)

    def step(self, scheduler: LRScheduler, skipped: bool) -> None:
        """Called at ``scheduler.step()``, after an optimizer step that was ``skipped`` or not.

        After a real step, this also makes the scheduler's skipped steps, if it counts batches.
        """
        if self._walking or scheduler in self._parts:
            return
        if scheduler not in self._by_batches:
            self._parts.update(children(scheduler))
            self._by_batches[scheduler] = self._counts_batches(scheduler)
        if skipped:
            self._skipped[scheduler] = self._skipped.get(scheduler, 0) + 1
            return
        count = self._skipped.pop(scheduler, 0) + (self._loaded.pop(0) if self._loaded else 0)
        self._walking = True
        try:
            for _ in range(count if self._by_batches[scheduler] else 0):
                scheduler.step()
        finally:
            self._walking = False
        self._warn_past_end(scheduler)

    def _warn_past_end(self, scheduler: LRScheduler) -> None:
        """Warn once if the loop continues after a schedule whose length was read as batches."""
        end = self._ends.get(scheduler)
        if end is not None and scheduler.last_epoch > end:
            del self._ends[scheduler]
            if self._session.is_main:
                warn(ENDED.format(type(scheduler).__name__, end))

    def _counts_batches(self, scheduler: LRScheduler) -> str:
        """Return why the scheduler's length counts batches, or "" if nothing shows that it does."""
        asked = [length for length in self._asked_before(scheduler) if length > 1]
        end, numbers = end_of(scheduler), dict(numbers_of(scheduler))
        loop = loop_around(users_frames(self._session.frame))
        lengths = (asked or self._position.lengths) if loop.is_over_passes else [1]
        totals = [epochs * length for epochs in loop.counts for length in lengths]
        for name, number in {**numbers, "length": end}.items():
            # OneCycleLR has its first rate before the first step, so scripts add 1
            if number in totals or (number is not None and number == end and end - 1 in totals):
                return f"its {name}={number} is the loop's number of batches"
        if self._counts_steps(scheduler, totals, lengths):
            return ""
        for name, number in numbers.items():
            for length in asked:
                if number >= length and number % length == 0:
                    if end == number and not loop.counts:
                        self._ends[scheduler] = end
                    return f"its {name}={number} is {number // length} x len(loader)"
        return ""

    def _counts_steps(self, scheduler: LRScheduler, totals: list[int], lengths: list[int]) -> bool:
        """Whether the scheduler's length is the number of real steps in one of the totals."""
        size, end = self._position.size, end_of(scheduler)
        steps = {whole // size for whole in totals} | {-(-whole // size) for whole in totals}
        epochs = [(whole // length, length) for whole in totals for length in lengths]
        steps |= {count * (length // size) for count, length in epochs}
        steps |= {count * -(-length // size) for count, length in epochs}
        has_end = end is not None or isinstance(scheduler, LambdaLR)
        ends = {number for _, number in numbers_of(scheduler)} if end is None else {end}
        return has_end and size > 1 and not steps.isdisjoint(ends)

    def _asked_before(self, scheduler: LRScheduler) -> list[int]:
        """Return the lengths of this loader that the script knew when it created the scheduler."""
        return [
            length
            for loader, length, older in self._asked
            if (known := loader()) is not None
            and self._position.is_in(known)
            and (scheduler not in older or scheduler in self._before)
        ]

    @hookimpl(wrapper=True)
    def loader_length(self, loader: DataLoader[object]) -> Generator[None, int | None, int | None]:
        """Record the length that the script gets, and the schedulers that exist at that time."""
        answer = yield
        length = (
            answer
            if answer is not None or isinstance(loader.dataset, IterableDataset)
            else len(index_sampler(loader))
        )
        if (
            length
            and torch.is_grad_enabled()
            and all(known() is not loader or other != length for known, other, _ in self._asked)
        ):
            self._asked.append(
                (weakref.ref(loader), length, weakref.WeakSet(objects.alive(LRScheduler)))
            )
        return answer

    # Averages ------------------------------------------------------------------------------------

    def _skip_average(self, original: Callable[..., None]) -> Callable[..., None]:
        def update_parameters(average: AveragedModel, model: Module) -> None:
            trained = {id(parameter) for parameter in model.parameters()}
            sums = [
                one
                for one in self._optimizers.sums
                if any(id(parameter) in trained for parameter in one.parameters())
            ]
            if not sums or not all(one.skipped for one in sums):
                original(average, model)

        return update_parameters

    # State and words -----------------------------------------------------------------------------

    def saved(self) -> list[int]:
        """Return the number of skipped steps of each scheduler, in the order of the first skip."""
        return list(self._skipped.values())

    def put_back(self, state: list[int]) -> None:
        self._skipped.clear()
        self._loaded = list(state)

    def lines(self) -> list[str]:
        """Return lines for ``explain``."""
        by_batches = [(type(one).__name__, why) for one, why in self._by_batches.items() if why]
        return [
            *(
                f"{name} counts batches ({why}): a real step advances it by those behind it"
                for name, why in by_batches
            ),
            AVERAGES,
        ]


def end_of(scheduler: LRScheduler) -> int | None:
    """Return the number of steps after which a schedule ends, or None if that is not known.

    A rising ``LinearLR`` is a warm-up, which ends before the loop, so this returns None.
    """
    if isinstance(scheduler, SequentialLR):
        last = end_of(children(scheduler)[-1])
        begin = milestones(scheduler)[-1]
        return None if last is None else begin + last
    if isinstance(scheduler, LinearLR) and scheduler.end_factor >= scheduler.start_factor:
        return None
    kind = next((kind for kind in LENGTHS if isinstance(scheduler, kind)), None)
    end = None if kind is None else getattr(scheduler, LENGTHS[kind])
    return end if isinstance(end, int) else None


def numbers_of(thing: object, name: str = "", depth: int = DEPTH) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers in a schedule: in its attributes, and in the functions it calls."""
    if isinstance(thing, int) and not isinstance(thing, bool):
        yield name, thing
    elif depth:
        for part, value in _parts(thing, name):
            yield from numbers_of(value, part, depth - 1)


def _parts(thing: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(thing, LRScheduler):
        require_step_count()
        yield from (
            (key, value)
            for key, value in vars(thing).items()
            if key not in ("optimizer", "last_epoch", STEP_COUNT)
        )
    elif isinstance(thing, functools.partial):
        yield from ((name, value) for value in (thing.func, *thing.args))
        yield from thing.keywords.items()
    elif inspect.isfunction(thing):
        found = inspect.getclosurevars(thing)
        yield from {**found.globals, **found.nonlocals}.items()
        yield from ((name, value) for value in thing.__defaults__ or ())
    elif isinstance(thing, Mapping):
        yield from ((name, key) for key in thing)  # such as MultiStepLR's milestones
    elif isinstance(thing, list | tuple):
        yield from ((name, value) for value in thing)
