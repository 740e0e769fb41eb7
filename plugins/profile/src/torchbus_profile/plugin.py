"""Records the steps that ``profile=`` names, and offers ``s.range`` and ``s.profiled``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch.optim import Optimizer
from torch.profiler import profile as Profiler
from torch.profiler import record_function
from torchbus.plugin import Context, UsageError, expect, hookimpl, needs, warn

from torchbus_log.trackers.tracker import chosen_by_rank0, new_run_name
from torchbus_log.trackers.values import LoggedTable
from torchbus_profile import _compat, result
from torchbus_profile.plan import Recording, plan
from torchbus_profile.result import Profiled, StepTimeExchange, read

MOST_RANGES = 1000  # a loop may make a name for each step


@needs("profile", "profile_folder", "memory_snapshot", verbs=("profiled",))
class Profile:
    """Records some real steps with torch.profiler on each rank, and summarises them.

    Each rank writes a trace. At the end of the session, rank 0 prints the shares of each rank's
    time, and rank 0's ten longest operators. If the profiler fails, the session warns, and training
    continues.

    Args:
        profile: True, or a dict: ``skip_first``, ``wait``, ``warmup``, ``active`` and ``repeat`` of
            ``torch.profiler.schedule`` in real optimizer steps; ``record_shapes``,
            ``profile_memory``, ``with_stack``, ``with_flops`` and ``with_modules`` of
            ``torch.profiler.profile``.
        profile_folder: the folder in which each session gets a folder.
        memory_snapshot: also record the allocations of CUDA's memory, and write a snapshot with
            each trace, and after an error.

    Raises:
        UsageError: an option has another type or value, or the device has no memory snapshots.

    Source: https://pytorch.org/docs/stable/profiler.html
    """

    owns = ("profile",)
    verbs = ("range", "profiled")
    hears_trials = False
    tried_with = ({"profile": {"skip_first": 0}},)

    def __init__(
        self,
        *,
        profile: bool | Mapping[str, int | bool] | None = True,
        profile_folder: str | os.PathLike[str] = "torchbus-profiles",
        memory_snapshot: bool = False,
    ) -> None:
        self._plan = plan(profile)
        expect("profile_folder", profile_folder, (str, os.PathLike), "a path")
        expect("memory_snapshot", memory_snapshot, bool, "True or False")
        self._root = Path(profile_folder)
        self._snapshots = memory_snapshot and self._plan is not None
        self._recording: Recording | None = None
        self._found: Profiled | None = None
        self._ranges: set[str] = set()
        self._made = 0
        self._failed = False

    # Events --------------------------------------------------------------------------------------

    @hookimpl(trylast=True)  # loggers start before this, and close after it
    def session_start(self, session: Context) -> None:
        self._session = session
        self._seen = session.steps.follow().count
        if session.is_inside:
            self._plan = None  # the verb has activated the plugin, perhaps on this rank only
        if self._plan is None:
            return
        if self._snapshots and not _compat.can_snapshot(session.device):
            raise UsageError(
                f"memory_snapshot=True on {session.device}: only CUDA's allocator keeps a history."
                " Leave it out"
            )
        self._folder = self._root / chosen_by_rank0(session, "profile/folder", new_run_name)
        self._exchange = StepTimeExchange(session)
        session.on_close.callback(self._close)
        if self._snapshots:
            _compat.remember_allocations()
        self._begin()

    @hookimpl(trylast=True)  # the work of other listeners after a step is part of the step
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        count = self._session.steps.count
        if self._plan is None or count == self._seen:
            return
        self._seen, self._made = count, self._made + 1
        if self._recording is not None:
            with self._guarded():
                self._recording.stepped()
            if self._recording is not None and self._recording.is_over:
                self._recording = None
        self._begin()

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        self._failed = error is not None
        recording, self._recording = self._recording, None
        if recording is not None:
            with self._guarded():
                recording.cut()
        if error is not None and self._snapshots:
            with self._guarded():
                self._write_snapshot("error")

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]] | None:
        if self._plan is None:
            return None
        return {"profile": [f"{self._plan.described()}; each rank writes into {self._folder}"]}

    # Verbs ---------------------------------------------------------------------------------------

    def range(self, name: str) -> record_function:
        """Name a part of the loop for all profilers: ``with s.range("augment"):``.

        It may also decorate a function. Any rank may call it. The printed tables list the ranges of
        the recorded steps. Raises UsageError if the name is not a text.

        Source: https://pytorch.org/docs/stable/generated/torch.autograd.profiler.record_function.html
        """
        expect("s.range(name)", name, str, "a text")
        if len(self._ranges) < MOST_RANGES:
            self._ranges.add(name)
        return record_function(name)

    def profiled(self) -> Profiled | None:
        """Return the result of this rank's last recording, or None before its end.

        Any rank may call it.
        """
        return self._found

    # Inside --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._recording is None and self._plan is not None and self._plan.begins(self._made):
            if _compat.is_recording():
                warn(
                    "profile: another profiler is recording, and torch has one at a time. It"
                    " keeps these steps: remove it, or remove profile="
                )
                return
            with self._guarded():
                self._recording = Recording(self._plan, self._session.device, self._ready)

    def _ready(self, profiler: Profiler, steps: int) -> None:
        found = read(profiler, self._ranges, self._seen, steps)
        with self._guarded():
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"rank{self._session.rank}.{found.last_step}.pt.trace.json.gz"
            profiler.export_chrome_trace(str(self._folder / name))
            found = dataclasses.replace(found, trace=str(self._folder / name))
        if self._snapshots:
            with self._guarded():
                self._write_snapshot(str(found.last_step))
        self._found = found
        self._exchange.publish(found)
        self._send("profile: operators", result.of_operators("operator", found.operators))
        if found.ranges:
            self._send("profile: ranges", result.of_operators("range", found.ranges))

    def _write_snapshot(self, word: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        _compat.write_snapshot(self._folder / f"rank{self._session.rank}.{word}.memory.pickle")

    def _send(self, name: str, rows: list[tuple[str, ...]]) -> None:
        if rows[1:] and self._session.is_main and self._session.bus.has_listeners("table_ready"):
            step = self._found.last_step if self._found is not None else 0
            self._session.bus.hook.table_ready(
                name=name, table=LoggedTable(rows[0], tuple(rows[1:])), step=step
            )

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            recording, self._recording = self._recording, None
            if recording is not None:
                recording.drop()
            warn(f"profile: {type(error).__name__}: {error}. Training continues")

    def _close(self) -> None:
        """Print the result on rank 0, unless the loop has failed. All ranks have published."""
        if self._snapshots:
            _compat.forget_allocations()
        if self._failed or not self._session.is_main or self._plan is None:
            return
        if 0 < self._made < self._plan.first_step:
            warn(
                f"profile: the loop made {self._made} real steps, and the first to be recorded is"
                f" {self._plan.first_step}: pass a smaller skip_first in profile="
            )
        if self._found is None:
            return
        parts = self._exchange.known(self._found)
        self._send("profile: ranks", result.of_ranks(parts))
        print(result.text(self._found, parts))
