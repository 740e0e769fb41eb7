"""The plugin of shorter passes: its options, and what it leaves out of a try."""

from __future__ import annotations

from torchbus.plugin import Context, UsageError, expect, hookimpl

from torchbus_debug.passes import Limit, LimitedPasses
from torchbus_debug.same import SameSamples
from torchbus_debug.summary import Summary
from torchbus_debug.tried import TriedFiles


class Limits:
    """Ends passes over loaders early, to try a script. The loop stays as it is.

    Args:
        fast_dev_run: True, or a number N: every pass has one batch, or N. ``s.epochs`` ends after
            one epoch, and a summary says what ran. No checkpoint is written or read, and no logger
            starts. What ``s.save`` and ``torch.save`` write can be loaded in the block, and is gone
            after it. It wins over the options below.
        limit_train_batches: how many batches a pass that trains has at most: an int, or a float for
            a part of them.
        limit_eval_batches: the same for a pass that evaluates.
        overfit_batches: the same for every pass; and each pass over a loader has the same samples,
            in the same order. It wins over the two options above.

    Batches are counted on each rank. ``len(loader)`` is what the next pass will have.

    Raises:
        UsageError: an option has another type or value.
    """

    owns = ("limits of passes",)

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

    @hookimpl
    def session_start(self, session: Context) -> None:
        if self._overfits is not None:
            session.bus.register(SameSamples(session, self._overfits.value), "debug.same")
        if self._train or self._evaluate:
            passes = LimitedPasses(session, self._train, self._evaluate)
            session.bus.register(passes, "debug.passes")
        if self.dry_run:
            session.bus.register(TriedFiles(session), "debug.files")
        if self.dry_run and session.is_main:
            session.bus.register(Summary(session.steps.follow(), passes), "debug.summary")

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
