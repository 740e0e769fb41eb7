"""Loaders, passes over them, and wrappers that prefetch batches.

This module reads loaders and their iterators. It restores only their random states, and the states
of samplers and datasets."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import cast

from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torchbus.plugin import Context, LoaderIterator, Origin, UsageError, warn

from torchbus_checkpoint.loop import generators
from torchbus_checkpoint.loop.frames import Counters
from torchbus_checkpoint.loop.generators import LoaderStates, parts, some
from torchbus_checkpoint.loop.history import Section
from torchbus_checkpoint.loop.values import same
from torchbus_checkpoint.loop.variables import Numbers
from torchbus_checkpoint.state.plain import State, digest
from torchbus_strategy.script_generators import Generator

GIVEN_AGAIN = "stored, and yielded again (by a list, or itertools.cycle)"


def waiting(session: Context, one: OpenPass) -> int:
    """Return the number of batches that a wrapper has fetched but the loop has not used yet."""
    return 0 if one.origin is None else session.batches.waiting(one.origin)


def used(session: Context, one: OpenPass) -> int:
    """Return the number of batches of a pass that the loop has used."""
    iterator, length = one.alive, 0 if one.origin is None else one.origin.length or 0
    return (length if iterator is None else iterator.num_yielded) - waiting(session, one)


def refuse_hidden_batches(session: Context) -> None:
    """Raise UsageError if a replay can't reproduce the source of the batches."""
    for one in session.batches.current:
        if one.origin.threaded or one.origin.reused:
            fate = "read by another thread" if one.origin.threaded else GIVEN_AGAIN
            raise UsageError(
                "a checkpoint can't record the loop's position in its data: the batches of"
                f" {one.origin.name} are {fate}."
                " Iterate over the loader itself in each epoch (DataLoader(num_workers=...) reads"
                " ahead as well)"
            )


def signature(loader: DataLoader[object]) -> str:
    """Describe a loader's dataset by a text that is the same in the next run."""
    try:
        size = f"{len(cast(Sized, loader.dataset))} samples"
    except TypeError:
        size = "a stream"
    return f"{type(loader.dataset).__name__}, {size}, batch_size {loader.batch_size}"


class KnownLoaders:
    """Loaders that the loop has read, by weak references.

    States from a checkpoint wait here until a loader with the same signature is read. A loader that
    is not in use has the states that are common to all ranks.
    """

    def __init__(
        self,
        session: Context,
        states: LoaderStates,
        in_use: Callable[[DataLoader[object]], bool],
    ) -> None:
        self._session = session
        self._states = states
        self._in_use = in_use
        self._loaders: list[weakref.ref[DataLoader[object]]] = []
        self._waiting: list[tuple[str, State]] = []
        self._restored: list[Generator] = []

    def __iter__(self) -> Iterator[DataLoader[object]]:
        return iter(
            [loader for loader in (known() for known in self._loaders) if loader is not None]
        )

    def add(self, loader: DataLoader[object]) -> None:
        """Called when the loop reads a loader. Gives a new loader its state from the checkpoint."""
        if not any(known is loader for known in self):
            self._loaders = [*map(weakref.ref, self), weakref.ref(loader)]
            self._states.know(loader)
            self._put(loader)

    def state(self) -> list[list[object]]:
        """Return the signature and the states of each loader."""
        found: list[list[object]] = []
        for loader in self:
            with self._stream_of(loader):
                found.append([signature(loader), self._states.read(loader)])
        return found

    def load(self, saved: list[tuple[str, State]], restored: list[Generator]) -> None:
        """Restore the known loaders now, and other loaders when the loop reads them.

        Generators in ``restored`` are left as they are. So are, later, generators that another
        loader shares with a loader that is known now.
        """
        self._waiting = [(over, states) for over, states in saved if states]
        self._restored = restored
        for loader in self:
            with self._stream_of(loader):
                self._put(loader)
        self._restored += [one for loader in self for one in generators.of(loader)]

    def _stream_of(self, loader: DataLoader[object]) -> AbstractContextManager[None]:
        return nullcontext() if self._in_use(loader) else self._session.random.script_alike()

    def _put(self, loader: DataLoader[object]) -> None:
        for index, (over, states) in enumerate(self._waiting):
            if over == signature(loader):
                self._states.write(loader, states, self._restored)
                del self._waiting[index]
                return


@dataclass(eq=False)
class OpenPass:
    """A pass over a loader.

    ``started`` and ``wanted`` are the random states at the creation of its iterator and at the
    first request for a batch. ``consumed_before`` is the number of batches that the pass had
    yielded when a later pass began, or -1. ``numbers`` are the values of the loop's variables when
    this pass began, and ``generators`` the states of those that variables name.
    """

    section: Section
    ordinal: int
    loader: weakref.ref[DataLoader[object]]
    started: State
    counters: Counters
    samples: dict[str, str]
    numbers: Numbers
    generators: dict[tuple[str, str], object]
    wanted: State | None = None
    iterator: weakref.ref[LoaderIterator] | None = None
    origin: Origin | None = None
    consumed_before: int = -1

    @property
    def alive(self) -> LoaderIterator | None:
        return None if self.iterator is None else self.iterator()

    @property
    def num_yielded(self) -> int:
        return 0 if self.alive is None else self.alive.num_yielded

    @property
    def exhausted(self) -> bool:
        return self.alive is None or self.alive.ended


CHOICES = ("indices", "weights")  # of Subset, SubsetRandomSampler, WeightedRandomSampler


def look(loader: DataLoader[object]) -> dict[str, str]:
    """Return digests of the chosen indices and of the tensors. Of large ones, a part is read."""
    return {
        "chosen": digest(list(_choices(loader))),
        "held": digest([some(tensor) for tensor in _tensors(loader)]),
    }


def compare(saved: dict[str, str], loader: DataLoader[object], over: str) -> None:
    """Raise UsageError if the pass uses other samples than before. Warn if their data differs."""
    now = look(loader)
    if saved["chosen"] != now["chosen"]:
        raise UsageError(
            f"this pass over a loader of {over} has other samples than the interrupted one: the"
            " loop chooses them by a count or a loss, which a replay does not have. Choose them by"
            " the epoch, or by random numbers"
        )
    if saved["held"] != now["held"]:
        warn(
            f"the tensors of the loader of {over} differ from those of the interrupted pass:"
            " either the data has changed, or the loop has made different tensors"
        )


def _choices(loader: DataLoader[object]) -> Iterator[Sequence[object] | Tensor]:
    for _, part in parts(loader):
        for name in CHOICES:
            value = getattr(part, "__dict__", {}).get(name)
            if isinstance(value, list | tuple | range | Tensor):
                yield some(value)


def _tensors(loader: DataLoader[object]) -> Iterator[Tensor]:
    for _, part in parts(loader):
        if isinstance(part, TensorDataset):
            yield from part.tensors


class Workers:
    """Holds the initial random state of each loader's workers, by the loader's signature.

    A state is None if the run started the workers of several loaders with the same signature.
    """

    def __init__(self) -> None:
        self._begun: dict[str, State | None] = {}
        self._earlier: dict[str, State | None] = {}

    def state(self) -> dict[str, State | None]:
        return self._earlier | self._begun

    def load(self, saved: dict[str, State | None]) -> None:
        """Restore the record of an earlier run."""
        self._earlier = dict(saved)

    def begin(self, over: str, now: State) -> State | None:
        """Called when a loader starts its workers in this session.

        Returns the random states at their start in an earlier run, if these differ from ``now``.
        """
        before, is_first = self._earlier.pop(over, None), over not in self._begun
        self._begun[over] = (before or now) if is_first else None
        return before if before is not None and not same(before, now) else None
