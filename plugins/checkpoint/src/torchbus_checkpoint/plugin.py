"""The plugin: its options and its verbs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from torchbus.plugin import Context, LoaderIterator, UsageError, expect, hookimpl, needs

from torchbus_checkpoint import options
from torchbus_checkpoint.agreement.exchange import agree
from torchbus_checkpoint.agreement.requests import Requests, seconds
from torchbus_checkpoint.agreement.when import When
from torchbus_checkpoint.disk import choice
from torchbus_checkpoint.folder_lock.lock import FolderLock
from torchbus_checkpoint.loop import wrappers
from torchbus_checkpoint.loop.contents import Finder
from torchbus_checkpoint.loop.epochs import Epochs
from torchbus_checkpoint.loop.position import Position
from torchbus_checkpoint.loop.steps import Steps
from torchbus_checkpoint.remote import fetch
from torchbus_checkpoint.remote.job import RemoteJob
from torchbus_checkpoint.remote.url import shown
from torchbus_checkpoint.replay.replaying import Replay
from torchbus_checkpoint.state import shapes
from torchbus_checkpoint.state.snapshot import Snapshot


@needs("checkpoint", "local_copy", "every_n_steps", "every_n_epochs", "every_minutes", "keep", "monitor", "mode", "resume", "time_limit")
@needs("monitor", "mode")
class Checkpoint:
    """Checkpoints of the whole loop, and its exact resume.

    Args:
        checkpoint: folder for automatic checkpoints, which all hosts share, or a URL of one, as in "s3://bucket/run". None: only ``s.save``
            and ``s.load``.
        local_copy: with a URL, the folder that they are written to first. "checkpoints/s3/bucket/run" by default.
        every_n_steps, every_n_epochs, every_minutes: how often; any of them. By default after every epoch.
        keep: so many are kept, the last ones, or with ``monitor`` the best ones and the last. None keeps all.
        monitor: the name of a value given to ``s.log``; its mean over ranks ranks the checkpoints.
        mode: whether the "min" or the "max" of it is best.
        resume: "auto" goes on from the last checkpoint in the folder that is whole; "never" begins anew, and refuses a
            folder that has some; a path names one.
        async_save: write in a thread; the step pays for a copy in main memory.
        safetensors: write the weights of each model in this format as well. Needs the package of that name.
        sharded_save: each rank writes the parts that it has of models and optimizers, in the format of torch.distributed.checkpoint, and no
            rank gathers them; with strategy="fsdp". Such checkpoints resume with and without it, on any number of ranks.
        time_limit: so long after its start the session saves and leaves as if it had got SIGUSR1: a timedelta, or "11:50:00".

    With a folder, SIGTERM and SIGUSR1 save at the next step boundary, and leave with exit status 128 + the signal's number.

    ``s.save(path)``, ``s.load(path)``, ``s.register(name, object)``, ``for epoch in s.epochs(10)``. All ranks call them alike.
    """

    owns = ("checkpoints",)
    verbs = ("save", "load", "register", "epochs")

    def __init__(
        self,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        local_copy: str | os.PathLike[str] | None = None,
        every_n_steps: int | None = None,
        every_n_epochs: int | None = None,
        every_minutes: float | None = None,
        keep: int | None = 3,
        monitor: str | None = None,
        mode: str = "min",
        resume: str | os.PathLike[str] = "auto",
        async_save: bool = False,
        safetensors: bool = False,
        sharded_save: bool = False,
        time_limit: str | timedelta | None = None,
    ) -> None:
        self._options = options.checked(
            checkpoint, local_copy=local_copy, keep=keep, monitor=monitor, mode=mode, resume=resume, async_save=async_save, safetensors=safetensors,
            sharded_save=sharded_save,
        )  # fmt: skip
        self._when = When(every_n_steps, every_n_epochs, every_minutes)
        self._time_limit_s = None if time_limit is None else seconds(time_limit)
        self._requests: Requests | None = None
        self._replay: Replay | None = None
        self._remote: RemoteJob | None = None

    # Events ----------------------------------------------------------------------------------------------------

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session
        self._position = Position(session)
        self._finder = Finder(session)
        self._steps = Steps(self._boundary)
        self._epochs = Epochs(session, self._position, self._steps, lambda: self._boundary(None))
        self._snapshot = Snapshot(session, self._options, self._finder, self._position, self._steps, self._epochs)
        for name, part in (("position", self._position), ("contents", self._finder), ("steps", self._steps)):
            session.bus.register(part, f"checkpoint.{name}")
        self._position.begin()
        session.batches.follow("" if self._options.folder is None else "the position in a checkpoint")
        if self._options.folder is not None:
            found = agree(session, "checkpoint/resume", self._begin_in_folder)
            if found:
                self._begin_replay(fetch.to_this_host(session, self._options, Path(found))).lead()
            self._requests = Requests(session, lambda: self._when.time_is_up, self._time_limit_s)

    @hookimpl
    def after_backward(self) -> None:
        if self._options.folder is not None:
            wrappers.refuse_hidden_batches(self._session)

    @hookimpl
    def after_optimizer_step(self) -> None:
        if self._position.trains:
            return
        if self._options.folder is not None and not self._position.is_known:
            raise UsageError(
                "checkpoint=... with a loop that takes no batch from a DataLoader: nobody can tell where it is. Say "
                "`for step in s.epochs(...):` instead of `range(...)`"
            )
        self._position.training_begins()

    @hookimpl
    def log_metrics(self, metrics: dict[str, Any]) -> None:
        if self._options.monitor in metrics:
            self._snapshot.metric = float(self._session.reduce(float(metrics[self._options.monitor])))

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        replay = self._replay
        if error is None:
            if replay is not None and replay.pending:
                replay.end()
            elif self._options.folder is not None and self._position.trains and (self._steps.since_save or not self._snapshot.end_is_saved):
                self._snapshot.loop_has_ended = True
                self._save_automatically()
        elif replay is not None and replay.pending:
            instead = replay.explain_failure(error)
            if instead is not None:
                raise instead from error
        self._snapshot.wait()

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        where, keep = self._options.folder, self._options.keep
        then = "" if self._options.url is None else f", and sent to {shown(self._options.url)}"
        lines = [] if where is None else [f"written to {where}{then}, {self._when.words()}; {keep or 'all'} are kept"]
        if self._replay is not None:
            lines.append(f"resumed from {self._resumed_from}")
        return {"checkpoints": lines or ["when s.save is called"]}

    # Verbs -----------------------------------------------------------------------------------------------------

    def register(self, name: str, thing: Any) -> Any:
        """Put an object with ``state_dict`` and ``load_state_dict`` into every checkpoint, as rank 0 has it. Returns it."""
        self._snapshot.register(name, thing)
        return thing

    def epochs(self, count: int) -> Iterator[int]:
        """``range(count)`` for the outermost loop, which goes on where an interrupted run was. An "epoch" may be a step."""
        expect("s.epochs: count", count, int, "a number of epochs")
        return self._epochs.run(count)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint, a folder. All ranks call it, at the end of what they do with a batch or an epoch."""
        if self._replay is not None and self._replay.pending:
            return self._replay.save_called()
        wrappers.refuse_hidden_batches(self._session)
        options.refuse_url(path, f"s.save({str(path)!r})")
        self._position.gaps.saves += 1
        self._snapshot.write(Path(path).absolute())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Put back what ``save`` wrote. Before the first step of this session, the loop that follows is led on to where the
        checkpoint was written. All ranks call it."""
        options.refuse_url(path, f"s.load({str(path)!r})")
        chosen = Path(path).absolute()
        if self._replay is not None and self._replay.pending:
            raise UsageError(f"s.load({str(path)!r}): this session is on its way back to {self._resumed_from} already")
        agree(self._session, f"checkpoint/load/{self._steps.count}/{chosen}", lambda: choice.verified(chosen))
        begins = not self._position.trains
        replay = self._begin_replay(chosen)
        self._position.gaps.forget()
        replay.put_back()
        if begins:
            self._position.trains = False
            self._session.seams.refresh()
        else:
            replay.drop()

    # Inside ----------------------------------------------------------------------------------------------------

    def _begin_in_folder(self) -> str:
        """On rank 0: take the folder for this job, and find the checkpoint to go on from."""
        assert self._options.folder is not None
        self._session.on_close.callback(FolderLock(self._options.folder).release)
        if self._options.url is not None:
            self._remote = RemoteJob(self._session, self._options)
            self._snapshot.written = self._remote.mirror.written
        return choice.to_begin_with(self._options)

    def _boundary(self, iterator: LoaderIterator | None) -> None:
        """The loop is between two steps: it asks ``iterator`` for a batch, or ``s.epochs`` for an epoch."""
        requests = self._requests
        if requests is None or (self._replay is not None and self._replay.pending):
            return
        requests.look()
        if not self._steps.since_save and not requests.leave:
            return
        self._finder.look_once()
        due = self._when.is_due(self._steps.count, self._steps.epochs) or requests.save or requests.leave
        if due and (iterator is None or self._position.can_be_found_again(iterator)):
            self._save_automatically()
            if requests.leave:
                self._leave(requests.leave)

    def _leave(self, status: int) -> None:
        """With a status that schedulers start a job again for."""
        self._snapshot.wait()
        if self._session.is_main:
            print(f"torchbus: saved after step {self._steps.count} as asked, and leaving with exit status {status}", file=sys.stderr)
        raise SystemExit(status)

    def _save_automatically(self) -> None:
        assert self._options.folder is not None
        os.makedirs(self._options.folder, exist_ok=True)
        if self._remote is not None:
            self._remote.mirror.check()
        self._snapshot.write(self._options.folder / f"{choice.PREFIX}{self._steps.count:08d}")
        self._when.saved(self._steps.count, self._steps.epochs)
        self._steps.saved()
        if self._requests is not None:
            self._requests.saved()

    def _begin_replay(self, found: Path) -> Replay:
        own, alike, scale = self._snapshot.own_of(found)

        def put_back() -> None:
            self._snapshot.put_back(found, own)
            self._when.saved(self._steps.count, self._steps.epochs)

        self._resumed_from = found
        with shapes.as_written(found, "the position in it"):
            self._replay = Replay(self._session, self._position, own["position"], put_back, alike, scale)
        self._epochs.replay = self._replay
        self._session.bus.register(self._replay, "checkpoint.replay")
        return self._replay
