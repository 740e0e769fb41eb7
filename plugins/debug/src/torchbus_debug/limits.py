"""The plugin that shortens passes: limits on batches, ``fast_dev_run``, ``overfit_batches``."""

from __future__ import annotations

import math
import random
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torchbus.plugin import Context, LoaderIterator, UsageError, expect, hookimpl, warn
from torchbus.runtime.steps import StepCounter

from torchbus_rank0.trial_files import TrialFiles
from torchbus_strategy import random_streams
from torchbus_strategy.evaluating import (
    DecidingModels,
    TrainedLoaders,
    in_eval_mode,
    without_gradients,
)

SEED = 0


class Fixed:
    """Replaces a sampler: gives the same indices in each pass, and has its attributes.

    So the script's ``loader.sampler.set_epoch(epoch)`` works, and the session sees that the sampler
    divides the data.
    """

    def __init__(self, sampler: Iterable[Any], count: int | None) -> None:
        self._indices = drawn(sampler, count)
        self._sampler = sampler

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._sampler, name)

    def __iter__(self) -> Iterator[object]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)


class SameSamples:
    """Draws the order of each loader once, from a separate generator.

    So the order is the same on all ranks and in a run that resumes, and the loop's random numbers
    are not used for it. A stream of an ``IterableDataset`` stays as it is.
    """

    def __init__(self, session: Context, limit: float) -> None:
        """``limit``: how many batches each rank needs at most; a float is a part of them."""
        self._session = session
        self._limit = limit
        self._fixed: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()

    @hookimpl(tryfirst=True)
    def loader_start(self, loader: DataLoader[object]) -> None:
        if (
            loader in self._fixed
            or isinstance(loader.dataset, IterableDataset)
            or not self._session.captures(loader)
        ):
            return
        self._fixed.add(loader)
        mine = {name: loader.__dict__[name] for name in ("batch_sampler", "sampler")}
        parts = self._session.world.data.parts
        batches = self._limit * parts if isinstance(self._limit, int) else None
        loader.__dict__.update(_fixed(loader, batches))
        known = weakref.ref(loader)
        self._session.on_close.callback(_put_back, known, mine)


def _put_back(known: weakref.ref[DataLoader[object]], attributes: dict[str, object]) -> None:
    loader = known()
    if loader is not None:
        loader.__dict__.update(attributes)


def _fixed(loader: DataLoader[Any], count: int | None) -> dict[str, object]:
    """Return what replaces the loader's samplers, for ``count`` batches; None: all."""
    batches = loader.batch_sampler
    if type(batches) is BatchSampler:
        samples = None if count is None else count * batches.batch_size
        sampler: Any = Fixed(batches.sampler, samples)
        instead = BatchSampler(sampler, batches.batch_size, batches.drop_last)
        return {"batch_sampler": instead, "sampler": sampler}
    if batches is not None:
        return {"batch_sampler": Fixed(batches, count)}
    return {"sampler": Fixed(loader.sampler, count)}


def drawn(sampler: Iterable[Any], count: int | None) -> list[Any]:
    """Draw from a sampler by random numbers that are the same in every run.

    Afterwards the generators, one of the sampler's own included, are as they were.
    """
    own = getattr(sampler, "generator", None)
    before, own_before = random_streams.read(), own.get_state() if own is not None else None
    try:
        for generator in (torch.default_generator, own):
            if generator is not None:
                generator.manual_seed(SEED)
        random.seed(SEED)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(SEED)
        return list(islice(sampler, count))
    finally:
        random_streams.write(before)
        if own is not None:
            own.set_state(own_before)


@dataclass
class Ran:
    """The passes and batches of one loader that ran. ``evaluates``: its latest pass evaluated."""

    name: str
    passes: int = 0
    batches: int = 0
    evaluates: bool = False


class RunSummary:
    """Counts what runs, and prints it when the loop has ended without an error."""

    hears_trials = False

    def __init__(self, steps: StepCounter, passes: LimitedPasses) -> None:
        self._steps = steps
        self._passes = passes
        self._ran: list[Ran] = []
        self._loaders: weakref.WeakKeyDictionary[DataLoader[object], Ran] = (
            weakref.WeakKeyDictionary()
        )

    @hookimpl
    def loader_opened(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        ran = self._loaders.get(loader)
        if ran is None:
            ran = self._loaders[loader] = Ran(iterator.origin.name)
            self._ran.append(ran)
        ran.passes += 1
        ran.evaluates = self._passes.evaluates(loader)

    @hookimpl
    def batch_ready(self, loader: DataLoader[object]) -> None:
        if loader in self._loaders:
            self._loaders[loader].batches += 1

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        if error is None:
            print("\n".join(self.lines()), file=sys.stderr, flush=True)

    def lines(self) -> list[str]:
        return [
            f"torchbus: fast_dev_run: the loop ran to its end, with {self._steps.count} real"
            " optimizer steps; no checkpoint was written, and no logger started",
            *(
                f"  {'evaluation' if one.evaluates else 'training'}: {one.name},"
                f" passes: {one.passes}, batches on rank 0: {one.batches}"
                for one in self._ran
            ),
        ]


@dataclass(frozen=True)
class Limit:
    """How many batches of a pass an option allows: an int, or as a float a part of them."""

    option: str
    value: int | float

    def of(self, length: int) -> int:
        """Return how many of ``length`` batches. Raises UsageError for a part below one batch."""
        if isinstance(self.value, int):
            return min(self.value, length)
        count = math.floor(self.value * length)
        if length and not count and self.value:
            raise UsageError(
                f"{self} of a loader that has {length} batches is less than one: choose a larger"
                " part, or a number of batches"
            )
        return count

    def __str__(self) -> str:
        return f"{self.option}={self.value!r}"


class LimitedPasses:
    """Sets the limit of each pass, by whether it trains or evaluates.

    A loader that has trained evaluates only without gradients. Of another one, the latest pass
    says it, and before its first pass the mode of the models.
    """

    def __init__(self, session: Context, train: Limit | None, evaluate: Limit | None) -> None:
        self._session = session
        self._train, self._evaluate = train, evaluate
        self._models, self._trained = DecidingModels(), TrainedLoaders()
        session.bus.register(self._models, "debug.models")
        session.bus.register(self._trained, "debug.trained")
        self._evaluates: weakref.WeakKeyDictionary[DataLoader[object], bool] = (
            weakref.WeakKeyDictionary()
        )

    @hookimpl(tryfirst=True)
    def loader_start(self, loader: DataLoader[object]) -> None:
        self._evaluates[loader] = self._looks_like_evaluation(loader)

    @hookimpl(tryfirst=True)
    def loader_opened(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        limit = self._limit(loader)
        if limit is not None:
            iterator.limit = limit.value if isinstance(limit.value, int) else _part(loader, limit)

    @hookimpl(wrapper=True, trylast=True)
    def loader_length(
        self, loader: DataLoader[object], whole: Callable[[], int]
    ) -> Generator[None, int | None, int | None]:
        length, limit = (yield), self._limit(loader)
        if limit is None:
            return length
        try:
            return limit.of(whole() if length is None else length)
        except TypeError:  # a stream without a length: torch raises its own error
            return None

    @hookimpl
    def loader_bypassed(self, loader: DataLoader[object]) -> None:
        limit = self._limit(loader)
        if limit is not None:
            warn(
                f"{limit}: {type(loader).__name__} defines its own __iter__, so its passes keep"
                " their length. Call super().__iter__() in it, or end the pass by break"
            )

    def evaluates(self, loader: DataLoader[object]) -> bool:
        """Whether the loader's pass now, or its next one, counts as evaluation."""
        known = None if loader in self._trained else self._evaluates.get(loader)
        return self._looks_like_evaluation(loader) if known is None else known

    def _looks_like_evaluation(self, loader: DataLoader[object]) -> bool:
        if without_gradients():
            return True
        return loader not in self._trained and bool(in_eval_mode(self._models.now()))

    def _limit(self, loader: DataLoader[object]) -> Limit | None:
        if not self._session.captures(loader):
            return None
        return self._evaluate if self.evaluates(loader) else self._train


def _part(loader: DataLoader[object], limit: Limit) -> int:
    """Return the length of a pass that has a part of the batches."""
    try:
        return DataLoader.__len__(loader)
    except TypeError:
        raise UsageError(
            f"{limit} with a loader over {type(loader.dataset).__name__}, which has no length: give"
            " a number of batches"
        ) from None


class Limits:
    """Ends passes over loaders early, to try a script. The loop stays as it is.

    Args:
        fast_dev_run: every pass has one batch (True), or N. ``s.epochs`` ends after one epoch. No
            checkpoint is written or read, and no logger starts. What ``s.save`` and ``torch.save``
            write is gone after the block. It overrides the other limits.
        limit_train_batches: how many batches a pass that trains has at most: an int, or a float for
            a part of them.
        limit_eval_batches: how many batches a pass that evaluates has at most: an int, or a float
            for a part of them.
        overfit_batches: how many batches every pass has at most, the same in each pass. It
            overrides the two limits.

    Batches are counted on each rank. ``len(loader)`` is what the next pass will have.

    Raises:
        UsageError: an option has another type or value.
    """

    owns = ("limits of passes",)
    tried_with = (
        {"fast_dev_run": 1},
        {"limit_train_batches": 1, "limit_eval_batches": 2},
        {"overfit_batches": 1},
    )

    def __init__(
        self,
        *,
        fast_dev_run: bool | int = False,
        limit_train_batches: float | None = None,
        limit_eval_batches: float | None = None,
        overfit_batches: float | None = None,
    ) -> None:
        expect("fast_dev_run", fast_dev_run, (bool, int), "True, False or a number of batches")
        if fast_dev_run < 0:
            raise UsageError(f"fast_dev_run={fast_dev_run}: it must be 1 batch or more")
        train = checked("limit_train_batches", limit_train_batches)
        evaluate = checked("limit_eval_batches", limit_eval_batches)
        overfit = checked("overfit_batches", overfit_batches or None)
        tries = Limit("fast_dev_run", int(fast_dev_run)) if fast_dev_run else None
        self._overfits = None if overfit is None else (tries or overfit)
        self._train, self._evaluate = (tries or overfit or one for one in (train, evaluate))
        self.dry_run = tries is not None
        self.shortens_passes = bool(self._train or self._evaluate)

    @hookimpl
    def session_start(self, session: Context) -> None:
        if self._overfits is not None:
            session.bus.register(SameSamples(session, self._overfits.value), "debug.same")
        if self._train or self._evaluate:
            passes = LimitedPasses(session, self._train, self._evaluate)
            session.bus.register(passes, "debug.passes")
        if self.dry_run:
            session.bus.register(TrialFiles(session), "debug.files")
        if self.dry_run and session.is_main:
            session.steps.follow()
            made = StepCounter(session.bus)  # s.load sets the session's own
            session.bus.register(made, "debug.steps")
            session.bus.register(RunSummary(made, passes), "debug.summary")

    @hookimpl(optionalhook=True)
    def end_epochs(self, epoch: int) -> bool | None:
        return True if self.dry_run and epoch else None

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        limits = list(dict.fromkeys(str(one) for one in (self._train, self._evaluate) if one))
        lines = [f"a pass has at most the batches of {limit}" for limit in limits]
        if self._overfits is not None:
            lines.append("each pass over a loader has the same samples")
        if self.dry_run:
            lines.append("a try: no checkpoint is written or read, and no logger starts")
        return {"limits": lines} if lines else {}


def checked(option: str, value: float | None) -> Limit | None:
    """Return the limit of an option. Raises UsageError for a wrong type or value."""
    expect(option, value, (int, float, type(None)), "a number of batches, or a part as a float")
    if value is None:
        return None
    if not (value >= 0 if isinstance(value, int) else 0 <= value <= 1):
        raise UsageError(
            f"{option}={value!r}: an int is a number of batches, and a float a part of them, from"
            " 0.0 to 1.0"
        )
    return Limit(option, value)
