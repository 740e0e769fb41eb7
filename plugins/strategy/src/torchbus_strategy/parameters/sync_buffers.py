"""Synchronises buffers that a forward fills from its batch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torchbus.plugin import Context, LoaderIterator, UsageError, hookimpl, warn

from torchbus_strategy.parameters.rank0_values import BufferOfModule, Buffers, entries_of

How: TypeAlias = Literal["rank0", "mean", "sum"]
WAYS = ("rank0", "mean", "sum")

LOOKS = 3
DIFFER = (
    "the forward fills {} from this rank's samples, and after each backward all ranks get {}: the"
    " samples of the other ranks are missing from it. Pass sync_buffers={{'{}': 'mean'}} for a"
    " running mean over samples, or 'sum' for counts and sums. For a queue, gather what is written:"
    " s.all_gather(...)"
)
COUNTS = (
    "{} grew by the number of this rank's samples in each of the first backwards: if it counts"
    " samples, those of the other ranks are missing. Pass sync_buffers={{'{}': 'sum'}} to count"
    " them, or sync_buffers={{'{}': 'rank0'}} if it counts something else"
)


def check_how(how: object) -> None:
    """Raise UsageError if ``how`` is an unknown way to synchronise buffers."""
    ways = list(how.values()) if isinstance(how, Mapping) else [how]
    unknown = [way for way in ways if way not in WAYS]
    if unknown:
        raise UsageError(
            f"sync_buffers={unknown[0]!r} is unknown: use 'rank0', 'mean' or 'sum', or a dict of"
            " them by the buffers' names"
        )


class SyncBuffers:
    """Synchronises the buffers of models after each backward. All ranks call each method.

    ``how`` is one way for all buffers, or a way for each name, such as "center" or "Loss.center".
    ``known`` returns the models that have buffers. In the first backwards a warning says which
    buffers differ, and which seem to count samples.
    """

    def __init__(
        self,
        session: Context,
        how: How | Mapping[str, How],
        known: Callable[[], Iterable[Module]],
    ) -> None:
        self._session = session
        self._how = how
        self._known = known
        self._looks = 0 if session.world.divides_anew else LOOKS
        self._sums = how == "sum" or (isinstance(how, Mapping) and "sum" in how.values())
        self._common = CommonBuffers()
        self._counting: set[str] | None = None
        self._has_said = self._is_merged = False
        if self._sums:
            session.bus.register(self, "strategy.sums_of_buffers")

    def _way(self, entry: BufferOfModule) -> How:
        if isinstance(self._how, Mapping):
            return self._how.get(entry.label, self._how.get(entry.name, "rank0"))
        return "rank0" if entry.is_statistic and self._how == "sum" else self._how

    # Before a backward ----------------------------------------------------------------------------

    def models_added(self) -> None:
        """Note the buffers of new models, which are equal on all ranks."""
        for entry in self._of_interest():
            self._common.note(entry)

    @hookimpl(trylast=True)
    def batch_ready(self, iterator: LoaderIterator) -> None:
        """Note the buffers again, because the loop may have reset some since the last backward."""
        if self._is_merged and torch.is_grad_enabled() and not iterator.origin.evaluates:
            self._note_all()

    def _note_all(self) -> None:
        self._is_merged = False
        for entry in self._of_interest():
            self._common.note(entry, replaces=True)

    def _of_interest(self) -> Iterable[BufferOfModule]:
        """Return the buffers whose values from before a backward are needed."""
        return [
            entry
            for entry in (entries_of(self._known()) if self._sums or self._looks else ())
            if self._way(entry) == "sum" or (self._looks and entry.tensor.numel() == 1)
        ]

    # After it -------------------------------------------------------------------------------------

    def synchronise(self, buffers: Buffers, alike: bool) -> None:
        """Synchronise the buffers once the gradients are averaged.

        ``alike`` says that the buffers have equal shapes on all ranks.
        """
        if alike and buffers.are_none and not self._sums:
            return
        entries = buffers.entries() if self._looks or self._how != "rank0" else []
        looks = bool(self._looks and alike and not all(entry.is_statistic for entry in entries))
        mine = [entry.tensor.clone() for entry in entries] if looks else []
        counting = self._growing_by_samples(entries) if looks else set()
        for entry in entries if alike else []:
            self._combine(entry)
        buffers.copy_from_rank0(alike)
        if looks:
            self._say(self._lost(entries, mine), counting)
        if self._sums or looks:
            self._note_all()
            self._is_merged = True

    def _combine(self, entry: BufferOfModule) -> None:
        way, tensor = self._way(entry), entry.tensor.data
        if way == "mean" and tensor.is_floating_point():
            tensor.mul_(self._session.share.weight)  # 1 on every rank if their shares are equal
            dist.all_reduce(tensor)
            tensor.div_(dist.get_world_size())
        elif way == "sum" and (before := self._common.of(entry)) is not None:
            repeats = self._session.share.weight == 0.0
            tensor.copy_(sum_of_changes(before, before if repeats else tensor))

    def _lost(self, entries: list[BufferOfModule], mine: list[Tensor]) -> list[str]:
        """Return the names of buffers whose new values do not depend on this rank's values."""
        return [
            entry.label
            for entry, before in zip(entries, mine, strict=True)
            if not entry.is_statistic
            and (
                self._way(entry) == "rank0"
                or (self._way(entry) == "mean" and not before.is_floating_point())
            )
            and not torch.equal(before.nan_to_num(), entry.tensor.nan_to_num())
        ]

    def _growing_by_samples(self, entries: list[BufferOfModule]) -> set[str]:
        """Return the names of numbers that grew by this rank's samples and get rank 0's value."""
        samples = len(self._session.share.indices)
        return {
            entry.label
            for entry in entries
            if entry.tensor.numel() == 1
            and samples > 1
            and self._how == "rank0"
            and (before := self._common.of(entry)) is not None
            and bool((entry.tensor - before == samples).all())
        }

    def _say(self, lost: list[str], counting: set[str]) -> None:
        reported = self._session.all_gather_object((lost, sorted(counting)))
        names = sorted({name for theirs, _ in reported for name in theirs})
        common = set.intersection(*(set(theirs) for _, theirs in reported))
        # with fewer samples, a rank may have a single one
        if self._session.share.count >= 2 * self._session.world.data.parts:
            self._counting = common if self._counting is None else self._counting & common
        self._looks -= 1
        if names and not self._has_said:
            self._has_said = True
            whose = "the mean, or rank 0's of integers" if self._how == "mean" else "rank 0's"
            self._warn(DIFFER.format(", ".join(names[:6]), whose, short(names[0])))
        if self._counting and not self._looks:
            first = min(self._counting)
            self._warn(COUNTS.format(first, short(first), short(first)))

    def _warn(self, text: str) -> None:
        if self._session.is_main:
            warn(text)


class CommonBuffers:
    """Copies of the buffers from when they were equal on all ranks."""

    def __init__(self) -> None:
        self._held: weakref.WeakKeyDictionary[Module, dict[str, Tensor]] = (
            weakref.WeakKeyDictionary()
        )

    def note(self, entry: BufferOfModule, replaces: bool = False) -> None:
        held = self._held.setdefault(entry.holder, {})
        if replaces or entry.name not in held:
            held[entry.name] = entry.tensor.detach().clone()

    def of(self, entry: BufferOfModule) -> Tensor | None:
        """Return the copy of a buffer, or None if the script has changed the buffer's shape."""
        before = self._held.get(entry.holder, {}).get(entry.name)
        return before if before is not None and before.shape == entry.tensor.shape else None


def sum_of_changes(before: Tensor, mine: Tensor) -> Tensor:
    """Return ``before`` with the changes of all ranks, in the same shape. All ranks call it.

    An element that only one rank has changed gets the value of that rank, bit for bit.
    """
    kind = NARROW.get(mine.dtype, mine.dtype)
    before, mine = before.to(kind), mine.to(kind)
    changed = (mine != before) & ~((mine != mine) & (before != before))
    total, count = torch.where(changed, mine, 0), changed.to(torch.int32)
    dist.all_reduce(total)
    dist.all_reduce(count)
    several = total - (count - 1).to(kind) * before
    return torch.where(count == 0, before, torch.where(count == 1, total, several))


NARROW = {
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}


def short(label: str) -> str:
    """Return the name of a buffer without its class."""
    return label.rpartition(".")[2]
