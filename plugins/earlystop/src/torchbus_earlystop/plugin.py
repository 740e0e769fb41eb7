"""Ends training early: early stopping, ``max_steps``, ``max_time``, and ``s.should_stop``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Literal, TypedDict

from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus.plugin import Context, LoaderIterator, UsageError, expect, hookimpl, needs, warn

from torchbus_earlystop.judge import MaxSteps, MaxTime, StopJudge, seconds
from torchbus_rank0.printing import say
from torchbus_strategy.evaluating import TrainingPasses

UNBOUNDED = -1
EMPTY_PASSES_AT_MOST = 100_000
GOES_ON = (
    "the training has ended, by {}, but the loop continues: {}. Leave it with `if s.should_stop:"
    " break` (s is the session: torchbus.current())"
)

NEXT = (
    "the training had ended, by {}, before the loop created an optimizer, {}: it makes no step."
    " Open a session for each training"
)
HAD_ENDED = (
    "early_stop={!r} had ended this run, so nothing was trained. With a larger patience (not by"
    " another min_delta only) it continues, if the loop over s.epochs(...) is not left by `break`;"
    " or begin again in another folder"
)
NEVER_LOGGED = (
    "early_stop={!r}: the session ends, and no value of this name was logged. Log it, or pass"
    " early_stop_strict=False"
)


class StopState(TypedDict):
    """The state for checkpoints."""

    best: float
    best_at: int
    waited: int
    last: float
    should_stop: bool


@needs(
    "monitor",
    "patience",
    "mode",
    "min_delta",
    "stopping_threshold",
    "divergence_threshold",
    "check_on_train_epoch_end",
    "strict",
)
class EarlyStop:
    """Ends the loop when a logged value stops improving, or after a number of steps or a time.

    Args:
        monitor: the name of a value given to ``s.log``. All ranks log it. The value that is written
            decides: its mean over ranks, and with ``on_epoch`` over the epoch. So all ranks stop
            together.
        patience: the number of values in a row without an improvement after which the loop ends.
        mode: whether smaller ("min") or larger ("max") is better.
        min_delta: by how much a value must improve to count. NaN never counts.
        stopping_threshold: a value that is better than this ends the loop at once.
        divergence_threshold: a value that is worse than this ends the loop at once.
        check_on_train_epoch_end: judge one value for each pass over the training data: the first
            that is written after the pass.
        strict: whether a name that is never logged is an error.
        max_steps: the number of real optimizer steps after which the loop ends, those of earlier
            runs included. None and -1 mean any number.
        max_time: the time after which the loop ends: "02:00:00", "1:12:00:00" with days, a
            timedelta, or seconds.

    At the end, ``s.should_stop`` is True, ``s.epochs`` ends, and training passes have no batches.
    These are passes over a loader that has fed a backward, or that the loop makes for each epoch.
    So a loop over ``range`` runs its remaining epochs without training. Evaluation still works.
    ``max_steps`` and ``max_time`` also end the current pass. With ``checkpoint=``, a checkpoint is
    written, from which a run with a larger limit resumes. A loop over ``s.epochs`` also resumes
    with a larger ``patience``.

    Raises:
        UsageError: an option has another type or value, or the loop does not end after training
            has ended.
    """

    owns = ("early stopping",)
    verbs = ("should_stop",)

    def __init__(
        self,
        monitor: str | None = None,
        *,
        patience: int = 3,
        mode: Literal["min", "max"] = "min",
        min_delta: float = 0.0,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool = False,
        strict: bool = True,
        max_steps: int | None = None,
        max_time: str | float | timedelta | None = None,
    ) -> None:
        expect("early_stop", monitor, (str, type(None)), "the name of a value given to s.log")
        expect("check_on_train_epoch_end", check_on_train_epoch_end, bool, "True or False")
        expect("early_stop_strict", strict, bool, "True or False")
        expect("max_steps", max_steps, (int, type(None)), "a number of optimizer steps, or None")
        if max_steps is not None and max_steps < 1 and max_steps != UNBOUNDED:
            raise UsageError(f"max_steps={max_steps}: it must be 1 step or more, or -1 for any")
        self._monitor, self._mode, self._is_strict = monitor, mode, strict
        self.companions = ("log",) if monitor is not None else ()
        self._judge = StopJudge(patience, mode, min_delta, stopping_threshold, divergence_threshold)
        self._once_a_pass, self._is_due = check_on_train_epoch_end, False
        self._max_steps = None if max_steps == UNBOUNDED else max_steps
        self._max_time_s = None if max_time is None else seconds(max_time)
        self._passes = TrainingPasses()
        self._steps_bound: MaxSteps | None = None
        self._is_no_better = self._is_cut = False
        self._had_ended = self._has_trained = self._has_warned = False
        self._num_empty_passes = 0
        self._next = ""

    @hookimpl(tryfirst=True)
    def launch(self, session: Context) -> None:
        if self._monitor is not None:
            _refuse_opposite(self._monitor, self._mode, session.options)

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session, self._steps = session, session.steps.follow()
        self._passes.join(session, "earlystop")
        if self._max_steps is not None:
            self._steps_bound = MaxSteps(session, self._max_steps, self._cut)
            session.bus.register(self._steps_bound, "earlystop.steps")
        if self._max_time_s is not None:
            session.bus.register(MaxTime(session, self._max_time_s, self._cut), "earlystop.time")
        session.on_close.push(self._refuse_missing)  # after the last log point

    @hookimpl(optionalhook=True)
    def monitored_name(self) -> str | None:
        return self._monitor

    @hookimpl(optionalhook=True)
    def optional_name(self) -> str | None:
        return None if self._is_strict else self._monitor

    @hookimpl(optionalhook=True)
    def monitored_value(self, name: str, value: float, is_first: bool) -> None:
        if name != self._monitor or self.should_stop:
            return
        if is_first:
            self._judge.restart()
        elif self._once_a_pass and not self._is_due:
            return
        self._is_due = False
        why = self._judge.ends(value, self._steps.count)
        self._is_no_better = bool(why)
        if why:
            self._say(f"early stopping: {name!r} {why}")

    # The end -------------------------------------------------------------------------------------

    @property
    def should_stop(self) -> bool:
        """Whether the loop should end."""
        return self._is_no_better or self._is_cut

    def _cut(self, why: str) -> None:
        """End the loop after this step. All ranks call it after the same step."""
        if not self._is_cut:
            self._say(f"{why}: the loop ends after step {self._steps.count}")
        self._is_cut = True

    def _say(self, text: str) -> None:
        if self._session.is_main:
            say(text)

    @hookimpl(optionalhook=True)
    def cut_short(self) -> Literal["here", "earlier"] | None:
        if not self._is_cut:
            return None
        bound = self._steps_bound
        return "earlier" if bound is not None and bound.has_left_out else "here"

    @hookimpl
    def batch_wanted(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        if self._is_cut and self._passes.trains(loader):
            iterator.limit = iterator.num_yielded

    @hookimpl
    def loader_end(self, loader: DataLoader[object]) -> None:
        self._is_due |= self._passes.ends(loader)

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if self.should_stop and optimizer is not None:
            self._next = type(optimizer).__name__

    def _warn_of_next(self) -> None:
        if self._next and self._session.is_main and not self._has_warned:
            self._has_warned = True
            warn(NEXT.format(self._ended_by, self._next))

    @hookimpl
    def skip_pass(self, loader: DataLoader[object]) -> bool | None:
        trains = self._passes.begins(loader)
        if not (self.should_stop and trains):
            self._num_empty_passes = 0
            return None
        self._passes.skips(loader)
        self._warn_of_next()
        self._num_empty_passes += 1
        if self._num_empty_passes > EMPTY_PASSES_AT_MOST:
            raise UsageError(self._goes_on(f"{EMPTY_PASSES_AT_MOST} passes without a batch"))
        return True

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        if isinstance(error, StopIteration) and self.should_stop:
            raise UsageError(self._goes_on("next(...) has found no batch")) from error
        has_not_trained = error is None and not self._has_trained
        if has_not_trained and self._had_ended and self._session.is_main:
            warn(HAD_ENDED.format(self._monitor))

    def _refuse_missing(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise UsageError if a loop that ran to its end has logged no value to judge."""
        is_short = self._is_cut or self._session.dry_run or not self._has_trained
        is_needed = self._is_strict and self._monitor is not None
        if is_needed and error is None and not (is_short or self._judge.has_judged):
            raise UsageError(NEVER_LOGGED.format(self._monitor))

    @hookimpl
    def after_optimizer_step(self) -> None:
        self._has_trained = True

    def _goes_on(self, how: str) -> str:
        return GOES_ON.format(self._ended_by, how)

    @property
    def _ended_by(self) -> str:
        return "max_steps or max_time" if self._is_cut else f"early_stop={self._monitor!r}"

    @hookimpl(optionalhook=True)
    def end_epochs(self) -> bool | None:
        self._warn_of_next()
        return self.should_stop or None

    # State ---------------------------------------------------------------------------------------

    def state_dict(self) -> StopState:
        """Return the state for checkpoints."""
        judge = self._judge
        return {
            "best": judge.best,
            "best_at": judge.best_at,
            "waited": judge.waited,
            "last": judge.last,
            "should_stop": self._is_no_better,
        }

    def load_state_dict(self, state: StopState) -> None:
        """Restore a state. With a larger patience or another threshold, training continues."""
        judge = self._judge
        judge.best, judge.waited = state["best"], state["waited"]
        judge.best_at, judge.last = state.get("best_at", 0), state.get("last", math.nan)
        self._had_ended = state["should_stop"] and self._monitor is not None
        self._is_no_better = self._had_ended and bool(judge.reason)

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]] | None:
        lines = [] if self._monitor is None else [f"when {self._monitor} is {self._judge}"]
        lines += [] if self._max_steps is None else [f"after {self._max_steps} real steps"]
        lines += [] if self._max_time_s is None else [f"after {self._max_time_s:g} s"]
        return {"early stop": lines} if lines else None


def _refuse_opposite(name: str, mode: str, options: Mapping[str, object]) -> None:
    """Raise UsageError if ``monitor=`` judges the same value in the opposite mode."""
    other = options.get("mode", "min")
    if options.get("monitor") != name or other == mode:
        return
    given = ("mode", mode) if "early_stop_mode" in options else ("early_stop_mode", other)
    raise UsageError(
        f"early_stop={name!r} with early_stop_mode={mode!r}, and monitor={name!r} with"
        f" mode={other!r}: one of them prefers the worst value. Pass {given[0]}={given[1]!r}"
    )


@needs(
    "early_stop",
    "patience",
    "early_stop_mode",
    "min_delta",
    "stopping_threshold",
    "divergence_threshold",
    "check_on_train_epoch_end",
    "early_stop_strict",
    verbs=("should_stop",),
)
def from_options(
    early_stop: str | None = None,
    patience: int = 3,
    early_stop_mode: Literal["min", "max"] = "min",
    min_delta: float = 0.0,
    stopping_threshold: float | None = None,
    divergence_threshold: float | None = None,
    check_on_train_epoch_end: bool = False,
    early_stop_strict: bool = True,
    max_steps: int | None = None,
    max_time: str | float | timedelta | None = None,
) -> EarlyStop:
    """Return the plugin for ``session(early_stop="val_loss", patience=3)``.

    Args:
        early_stop: the name of a value given to ``s.log`` that must improve.
        patience: the number of values in a row without an improvement after which the loop ends.
        early_stop_mode: whether smaller ("min") or larger ("max") is better.
        min_delta: by how much a value must improve to count.
        stopping_threshold: a value that is better than this ends the loop at once.
        divergence_threshold: a value that is worse than this ends the loop at once.
        check_on_train_epoch_end: judge one value for each pass over the training data: the first
            that is written after the pass.
        early_stop_strict: whether a name that is never logged is an error.
        max_steps: the number of real optimizer steps after which the loop ends, those of earlier
            runs included. None and -1 mean any number.
        max_time: the time after which the loop ends: "02:00:00", "1:12:00:00" with days, a
            timedelta, or seconds.
    """
    return EarlyStop(
        early_stop,
        patience=patience,
        mode=early_stop_mode,
        min_delta=min_delta,
        stopping_threshold=stopping_threshold,
        divergence_threshold=divergence_threshold,
        check_on_train_epoch_end=check_on_train_epoch_end,
        strict=early_stop_strict,
        max_steps=max_steps,
        max_time=max_time,
    )


from_options.tried_with = (  # type: ignore[attr-defined]
    {"max_steps": 3},
    {"max_time": "01:00:00"},
    {"early_stop": "error", "stopping_threshold": 1000.0},
)
