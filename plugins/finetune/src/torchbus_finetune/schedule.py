"""Which modules are frozen until when, as the options say it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from torchbus.plugin import UsageError, expect

EPOCH = re.compile(r"epoch (\d+)")
WILD = re.compile(r"\*|\?|\[[^]]*\]")


@dataclass(frozen=True)
class Entry:
    """Modules that are frozen until a step, or until an epoch.

    ``pattern``: a name, or names by ``*``, ``?`` and ``[...]``. ``step``: the number of real steps
    that the loop makes before. ``epoch``: the number that ``s.epochs`` gives, from 0. One of the
    two is None.
    """

    pattern: str
    step: int | None = None
    epoch: int | None = None

    @property
    def when(self) -> str:
        """The moment, in words."""
        return f"epoch {self.epoch}" if self.step is None else f"step {self.step}"

    @property
    def detail(self) -> int:
        """How much of a name the pattern spells out: the number of characters but wildcards."""
        return len(WILD.sub("", self.pattern))

    def is_due(self, steps: int, epoch: int) -> bool:
        """Whether the loop has made the steps, or has begun the epoch."""
        if self.step is not None:
            return steps >= self.step
        return self.epoch is not None and epoch >= self.epoch


Schedule = tuple[Entry, ...]


def read(unfreeze: Mapping[str, int | str] | None) -> Schedule:
    """Return what the option says. Raises UsageError if it can't be right."""
    if unfreeze is None:
        return ()
    expect(
        "unfreeze",
        unfreeze,
        Mapping,
        "a dict from names of modules to steps, such as {'backbone.*': 500}",
    )
    schedule = tuple(_entry(pattern, when) for pattern, when in unfreeze.items())
    _refuse_unordered([one for one in schedule if one.step is not None])
    _refuse_unordered([one for one in schedule if one.epoch is not None])
    return schedule


def _entry(pattern: object, when: object) -> Entry:
    if not isinstance(pattern, str) or not pattern:
        raise UsageError(
            f"unfreeze={{{pattern!r}: {when!r}}}: the key must be the name of a module, such as"
            " 'backbone.layer4', or a pattern, such as 'backbone.*'"
        )
    epoch = EPOCH.fullmatch(when) if isinstance(when, str) else None
    number = int(epoch[1]) if epoch else when
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise UsageError(
            f"unfreeze={{{pattern!r}: {when!r}}}: the value must be a number of real optimizer"
            " steps from 1, such as 500, or an epoch of s.epochs from 1, such as 'epoch 2'"
        )
    return Entry(pattern, epoch=number) if epoch else Entry(pattern, step=number)


def _refuse_unordered(entries: list[Entry]) -> None:
    for one, other in pairwise(entries):
        if (one.step or one.epoch or 0) > (other.step or other.epoch or 0):
            raise UsageError(
                f"unfreeze: {other.pattern!r} at {other.when} stands after {one.pattern!r} at"
                f" {one.when}: list modules in the order in which they are unfrozen"
            )
