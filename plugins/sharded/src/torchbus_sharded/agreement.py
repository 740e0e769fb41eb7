"""Detects ranks whose collectives diverge, before they gather or reduce different tensors."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus.plugin import Context, RanksDiverged, hookimpl

from torchbus_sharded._compat import count_of_collectives
from torchbus_strategy.collectives import all_gather_object
from torchbus_strategy.groups import guarded_groups
from torchbus_strategy.loss import terms
from torchbus_strategy.loss.intermediate_values import MOST
from torchbus_strategy.loss.term_weights import NUMBERS as TERM_NUMBERS

REMEDY = (
    "Parameters are gathered from all ranks, so that all have to do the same: leave no rank out, or"
    " use strategy='ddp'"
)
NUMBERS = max(9 + MOST + terms.SLOTS, TERM_NUMBERS)
HEAD = struct.Struct(f"<I{NUMBERS}d")
NO_NUMBERS = [0.0] * NUMBERS


T = TypeVar("T")


class Gathered(NamedTuple):
    """The result of an exchange: flags that any rank has set, and sums of numbers."""

    flags: bytes
    totals: list[float]


class Way:
    """The sequence of places in a step, as the last step passed them.

    A rank that reaches the same place as in the last step need not ask the others. A rank that
    reaches another place asks, and waits. So ranks that go different ways never combine tensors of
    different collectives.
    """

    def __init__(self) -> None:
        self._next: dict[tuple[int, int], int] = {}
        self._before = self._since = 0

    def is_usual(self, place: str) -> bool:
        """Whether the loop came to this place the last time that it had gone the same way."""
        so_far, self._since = (self._before, self._since), crc32(place.encode(), self._since)
        usual = self._next.get(so_far) == self._since
        self._next[so_far] = self._since
        return usual

    def end(self) -> None:
        """Begin a new step: a backward has ended, and the ranks have compared their ways to it."""
        self._before, self._since = self._since, 0


class Agreement:
    """Verifies over a separate process group that all ranks are about to run the same collective.

    So mismatched collectives of the main group can't pair up. Such a pair would abort gloo, hang
    NCCL or, if the sizes agree by chance, mix up the data. For the same reason all messages in the
    separate group have one size.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        with guarded_groups(session):
            self._group: dist.ProcessGroup | None = dist.new_group(
                backend="gloo", timeout=session.timeout
            )
        assert session.job is not None
        self._job = session.job
        session.bus.register(self, "fsdp.agreement")
        session.on_close.callback(self._forget)
        for verb in ("all_gather", "all_gather_object"):
            session.replace(session.collectives, verb, partial(self._synced, f"s.{verb}"))
        self._counted = _counter()
        self._met_at = 0
        self._passed = 0
        self._steps = 0
        self.way = Way()
        self.room = 0

    @hookimpl
    def after_optimizer_step(self) -> None:
        self._steps += 1

    def make_room(self, count: int) -> int:
        """Make room for more flags, and return the place of the first. All ranks call it."""
        self.room += count
        return self.room - count

    def passing(self, what: str) -> None:
        """Record this rank's action, which the ranks compare at the next ``sync``."""
        self._passed = crc32(what.encode(), self._passed)

    def collectives(self) -> int:
        """Return the number of collectives of the main process group since the last exchange."""
        return self._counted() - self._met_at

    def enter(self, what: str, kind: str = "") -> None:
        """Wait for the other ranks before collectives of the main group, unless the place is usual.

        A place is usual if the last step reached it after the same number of collectives. A rank
        that has made another collective waits here, so the ranks compare their places before they
        step. ``kind`` is the name of the place in every step, if ``what`` has a number.
        """
        if self.way.is_usual(f"{kind or what}, {self.collectives()}"):
            self.passing(what)
        else:
            self.sync(what)

    def sync(
        self, what: str, flags: bytes = b"", numbers: Sequence[float] = NO_NUMBERS
    ) -> Gathered:
        """Wait for the other ranks, and exchange flags and numbers.

        Raises RanksDiverged, on all ranks, if one of them calls it for another purpose, or has
        reached this place in another way.
        """
        what = f"{what}, after {self._steps} optimizer steps"
        self.passing(what)
        waits_already = self._job.waiting is not None
        if not waits_already:
            self._job.wait_in(what)
        reported = self._gather(
            HEAD.pack(self._passed, *numbers, *NO_NUMBERS[len(numbers) :])
            + flags.ljust(self.room, b"\0")
        )
        if not waits_already:
            self._job.go_on()
        self._passed = 0
        heads = [HEAD.unpack_from(message) for message in reported]
        if any(digest != heads[0][0] for digest, *_ in heads):
            self._raise(what)
        self._met_at = self._counted()
        return Gathered(
            bytes(map(max, zip(*reported, strict=True)))[HEAD.size :],
            [sum(parts) for parts in list(zip(*heads, strict=True))[1:]],
        )

    def _synced(self, what: str, gather: Callable[[T], list[T]]) -> Callable[[T], list[T]]:
        """Wait before a gather of the loop, which gloo could pair with a gather of parameters."""

        def call(value: T) -> list[T]:
            self.sync(what)
            return gather(value)

        return call

    def mean(self, what: str, numbers: Tensor) -> Tensor:
        """Return the means over ranks of a few numbers, in the same shape, by a ``sync``."""
        totals = self.sync(what, numbers=numbers.tolist()).totals[: len(numbers)]
        return (
            torch.tensor(totals, dtype=numbers.dtype, device=numbers.device)
            / self._session.world_size
        )

    def _gather(self, message: bytes) -> list[bytes]:
        reported = torch.empty(self._session.world_size, len(message), dtype=torch.uint8)
        dist.all_gather(
            list(reported),
            torch.frombuffer(bytearray(message), dtype=torch.uint8),
            group=self._group,
        )
        return [bytes(row) for row in reported.tolist()]

    def gather_objects(self, what: T) -> list[T]:
        """Return the values of all ranks. All ranks call it, after ``sync``."""
        return all_gather_object(what, self._session.world_size, self._group)

    def _forget(self) -> None:
        """Release the group.

        A later fork that garbage-collected it would wait for the group's threads, which it lacks.
        """
        self._group = None

    def _raise(self, what: str) -> None:
        reported = self.gather_objects(what)
        if len(set(reported)) == 1:
            raise RanksDiverged(
                f"before {what}, the ranks called different modules, or different functions that"
                f" all ranks must call. {REMEDY}"
            )
        places = "; ".join(f"rank {rank} at {place}" for rank, place in enumerate(reported))
        raise RanksDiverged(f"the ranks are at different places of the loop: {places}. {REMEDY}")


def _counter() -> Callable[[], int]:
    """Return a function that counts the main process group's collectives, if the backend can."""
    count = count_of_collectives()
    try:
        count()
    except RuntimeError:
        return lambda: 0
    return count
