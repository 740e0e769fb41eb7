"""Whether the loop takes the course that it took in the earlier run: where it does not, a replay can't lead it back."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader
from torchbus.plugin import UsageError, warn

from torchbus_checkpoint.loop.counters import Counters
from torchbus_checkpoint.replay import gaps
from torchbus_checkpoint.replay.gaps import Gap
from torchbus_checkpoint.replay.history import Pass, Section

REMEDY = "say `for epoch in s.epochs(...):` instead of `range(...)`, so that the run goes on where it was"
DRAWS = "Draw as much in every epoch, not only where a loss or a metric is good; or say `for epoch in s.epochs(...):` instead of `range(...)`"


def refuse_another_loader(saved: Pass, loader: DataLoader[Any], number: int) -> None:
    """Raise UsageError if this pass is over other data."""
    if saved.over != signature(loader):
        raise UsageError(
            f"pass {number} of this loop is over a loader of {signature(loader)}; in the checkpoint it was over one of {saved.over}. "
            f"If the loop is the same, its course depends on numbers that a replay does not have: {REMEDY}"
        )


def draws_alike(saved: Pass, now: Gap | None, section: Section, number: int) -> bool:
    """Raise UsageError where the script has drawn otherwise before this pass. Before the first pass of all, where most of it is weights that
    will be put back, say it, and return False."""
    others = gaps.differing(saved.gap, now)
    if others and (section, number) == ((0, 0), 0):
        warn(
            f"before its first pass over a loader the script draws other random numbers ({', '.join(others)}) than the run that was "
            "interrupted: if it splits or makes its data with them, this data is another"
        )
    elif others:
        raise UsageError(
            f"before pass {number} of this loop (over {saved.over}) the script draws other random numbers ({', '.join(others)}) than it "
            f"did in the run that was interrupted: what it draws depends on numbers that a replay does not have. {DRAWS}"
        )
    return not others


def refuse_hidden(before: Counters, now: Counters, when: str) -> None:
    """Raise UsageError if a loop that both know has gone on."""
    for key in before.keys() & now.keys():
        if before[key] != now[key]:
            place, name = key.rsplit(":", 1)
            raise UsageError(
                f"a checkpoint can't hold the position of `for {name} in ...` (in {place.split(' ', 1)[1]}): it was {before[key]!r}, and is "
                f"{now[key]!r} {when}. Say `for {name} in s.epochs(...):` instead of `range(...)`"
            )


def signature(loader: DataLoader[Any]) -> str:
    """What a loader is over, in words that are the same in the next run."""
    try:
        size = f"{len(loader.dataset)} samples"  # type: ignore[arg-type]
    except TypeError:
        size = "a stream"
    return f"{type(loader.dataset).__name__}, {size}, batch_size {loader.batch_size}"
