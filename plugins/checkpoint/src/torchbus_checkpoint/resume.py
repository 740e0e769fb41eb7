"""Locks the folder for this job, and resumes from the checkpoint in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from torchbus.plugin import Context, UsageError

from torchbus_checkpoint.disk import choice
from torchbus_checkpoint.exchange import agree
from torchbus_checkpoint.locks import FolderLock
from torchbus_checkpoint.loop.position import LoopPosition
from torchbus_checkpoint.loop.replaying import LoopReplay
from torchbus_checkpoint.loop.steps import Epochs
from torchbus_checkpoint.options import CheckpointOptions
from torchbus_checkpoint.remote import fetch
from torchbus_checkpoint.remote.fetch import RemoteJob
from torchbus_checkpoint.remote.mirror import RemoteMirror
from torchbus_checkpoint.state import forms
from torchbus_checkpoint.state.snapshot import LoopSnapshot
from torchbus_rank0.printing import say


class Resume:
    """The replay of this session, if it resumes. ``found`` is the checkpoint to resume from.

    ``mirror`` sends checkpoints to a store, on rank 0. ``restored`` is called once the counts of
    steps and epochs are restored.
    """

    def __init__(
        self,
        session: Context,
        options: CheckpointOptions,
        snapshot: LoopSnapshot,
        position: LoopPosition,
        epochs: Epochs,
        restored: Callable[[], None],
    ) -> None:
        self._session = session
        self._options = options
        self._snapshot = snapshot
        self._position = position
        self._epochs = epochs
        self._restored = restored
        self._replay: LoopReplay | None = None
        self.mirror: RemoteMirror | None = None
        self.found: Path | None = None

    @property
    def pending(self) -> LoopReplay | None:
        """The replay while it runs, and else None."""
        return self._replay if self._replay is not None and self._replay.pending else None

    def from_folder(self, folder: Path) -> None:
        """Lock the folder, and resume from a checkpoint in it."""
        found = agree(self._session, "checkpoint/resume", lambda: self._take(folder))
        if found:
            if self._session.is_main:
                say(f"resumes from {found}")
            self.begin(fetch.to_this_host(self._session, self._options, Path(found))).lead()

    def _take(self, folder: Path) -> str:
        """On rank 0: lock the folder for this job, and choose the checkpoint to resume from."""
        self._session.on_close.callback(FolderLock(folder).release)
        if self._options.url is not None:
            self.mirror = RemoteJob(self._session, self._options).mirror
            self._snapshot.written = self.mirror.written
        return choice.to_begin_with(self._options)

    def refuse_while_pending(self, path: str | os.PathLike[str]) -> None:
        """Raise UsageError for a load of this path during a replay."""
        if self.pending is not None:
            raise UsageError(
                f"s.load({str(path)!r}): this session is resuming from {self.found} already."
                " Remove this s.load(), or pass another folder as checkpoint="
            )

    def load(self, chosen: Path, step: int) -> None:
        """Restore a checkpoint. Before the first step, also replay the loop to its position."""
        agree(self._session, f"checkpoint/load/{step}/{chosen}", lambda: choice.verified(chosen))
        begins = not self._position.trains
        replay = self.begin(chosen)
        self._position.gaps.forget()
        replay.put_back()
        if begins:
            self._position.trains = False
            self._session.seams.refresh()
        else:
            replay.drop()

    def begin(self, found: Path) -> LoopReplay:
        """Begin a replay that ends at the position where the checkpoint was written."""
        mine, alike, scale = self._snapshot.local_of(found)
        if mine["position"].get("left"):
            raise UsageError(
                f"{found} does not say where the run resumes: max_steps or max_time had ended the"
                " loop, and then the loop left its pass by `break`, or made more steps. Remove the"
                " `break` (without a loader, end with an epoch), and pass the checkpoint before it"
                " as resume=..., or use another folder"
            )

        def put_back() -> None:
            self._snapshot.put_back(found, mine)
            self._restored()

        self.found = found
        with forms.as_written(found, "the position in it"):
            replay = LoopReplay(
                self._session, self._position, mine["position"], put_back, alike, scale
            )
        self._replay = self._epochs.replay = replay
        self._session.bus.register(replay, "checkpoint.replay")
        return replay
