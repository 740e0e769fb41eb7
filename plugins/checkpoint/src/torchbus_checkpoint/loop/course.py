"""Checks that a replay follows the same control flow as the recorded run."""

from __future__ import annotations

from collections.abc import Mapping

from torch.utils.data import DataLoader
from torchbus.plugin import TorchbusError, UsageError, warn

from torchbus_checkpoint.loop import history
from torchbus_checkpoint.loop.frames import Counter, Counters
from torchbus_checkpoint.loop.history import RecordedGap, RecordedPass, Section
from torchbus_checkpoint.loop.loaders import signature

REMEDY = (
    "write `for epoch in s.epochs(...):` instead of `range(...)` or `while`, so that the run"
    " continues where it was"
)
DRAWS = (
    "Draw as much in every epoch, whatever the loss or a metric is; or write `for epoch in"
    " s.epochs(...):` instead of `range(...)`"
)


OTHER_PASS = (
    "epoch {} of this loop is over a loader of {}; the interrupted run was in the middle of that"
    " epoch, over one of {}. Finish this epoch with the old data and batch size before you change"
    " them, or begin again in another folder"
)


def refuse_another_loader(
    saved: RecordedPass, loader: DataLoader[object], section: Section, number: int
) -> None:
    """Raise UsageError if this pass is over different data."""
    if saved.over != signature(loader) and section[0] % 2:  # in an epoch of s.epochs
        raise UsageError(OTHER_PASS.format(section[1], signature(loader), saved.over))
    if saved.over != signature(loader):
        raise UsageError(
            f"pass {number} of this loop is over a loader of {signature(loader)}; in the checkpoint"
            f" it was over one of {saved.over}. If the loop is the same, it depends on a count or a"
            f" loss, which a replay does not have: {REMEDY}"
        )


def draws_alike(
    saved: RecordedPass, now: RecordedGap | None, section: Section, number: int
) -> bool:
    """Raise UsageError if the script has drawn different random numbers before this pass.

    Before the first pass, warn instead, and return False: most draws there are weights, which
    will be restored.
    """
    others = history.differing(saved.gap, now)
    if others and (section, number) == ((0, 0), 0):
        warn(
            "before its first pass over a loader the script draws other random numbers"
            f" ({', '.join(others)}) than the interrupted run: if it splits or creates its data"
            " with them, this data differs"
        )
    elif others:
        raise UsageError(
            f"before pass {number} of this loop (over {saved.over}) the script draws other random"
            f" numbers ({', '.join(others)}) than the interrupted run: the draws depend on a count"
            f" or a loss, which a replay does not have. {DRAWS}"
        )
    return not others


RESUME_CODE = (
    ". If the script also has resume code (torch.load, and a loop that begins with a later epoch),"
    " remove it: checkpoint=... restores everything"
)


def refuse_hidden(
    before: Mapping[str, Counter | None], now: Counters, when: str, also: str = ""
) -> None:
    """Raise UsageError if a counter of both runs has a different value now."""
    for key in before.keys() & now.keys():
        if before[key] != now[key]:
            place, name = key.rsplit(":", 1)
            raise UsageError(
                f"a checkpoint can't hold the position of `for {name} in ...` (in"
                f" {place.split(' ', 1)[1]}): it was {before[key]!r}, and is {now[key]!r} {when}."
                f" Write `for {name} in s.epochs(...):` instead of `range(...)`{also}"
            )


def explain_failure(error: BaseException, in_epochs: bool) -> UsageError | None:
    """Return an explanation of an error that the loop raises during a replay.

    ``in_epochs`` says that the loop is over ``s.epochs``, so only its current epoch is replayed.
    """
    if not isinstance(error, Exception) or isinstance(error, TorchbusError):
        return None
    what, remedy = SKIPPED_PASS if in_epochs else SKIPPED_EPOCHS
    return UsageError(
        f"the loop can't skip its finished {what}, as it needs their data"
        f" ({type(error).__name__}: {error}). {remedy}"
    )


SKIPPED_EPOCHS = (
    "epochs",
    "Run the code after the inner loop only if there were batches: write `if outputs:`, or count"
    " them, and give names a value before the loops. Or begin again with `for epoch in"
    " s.epochs(...):` in another folder",
)
SKIPPED_PASS = (
    "passes of this epoch",
    "Run the code after each pass only if there were batches: write `if outputs:`, or count them."
    " Or evaluate after the pass that trains, and begin again in another folder",
)
