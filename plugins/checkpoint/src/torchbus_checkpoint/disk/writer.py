"""Writes one checkpoint from all ranks together, without a collective.

Each rank writes its own files. Rank 0 also writes the shared files, and renames the folder at the
end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torchbus.plugin import Context

from torchbus_checkpoint.disk import folder, formats
from torchbus_checkpoint.disk.divided import Groups
from torchbus_checkpoint.disk.formats import FileEntry, RunProgress
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.exchange import CheckpointExchange
from torchbus_checkpoint.state.checks import Held, refuse_separate
from torchbus_checkpoint.state.plain import State, copied


@dataclass(frozen=True)
class Content:
    """The contents of one checkpoint.

    Rank 0 writes ``shared``, which has files by name without suffix. Each rank writes ``local``,
    and its parts of the tensors in ``groups``. ``held`` says which tensors this rank's states have.
    """

    shared: dict[str, object]
    local: State
    groups: Groups | None
    held: Held
    facts: RunProgress

    def copied(self) -> Content:
        """Copy all tensors to main memory. A tensor that occurs twice is copied once."""
        shared, ours, groups = copied((self.shared, self.local, self.groups))
        return replace(self, shared=shared, local=ours, groups=groups)


class CheckpointWriter:
    """Writes one checkpoint at a time.

    With ``in_background``, the loop waits only for a copy in main memory, which a thread writes.
    With ``hosts_share``, all hosts share the folder. Otherwise rank 0 writes the files of hosts
    that don't see it.
    """

    def __init__(self, session: Context, in_background: bool, hosts_share: bool = True) -> None:
        self._session = session
        self._hosts_share = hosts_share
        self._in_background = in_background
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._count = 0

    def write(self, final: Path, content: Content, then: Callable[[], None] = lambda: None) -> None:
        """Write a checkpoint, and then call ``then`` on rank 0. All ranks must call this.

        Raises CheckpointError if it can't be written; in the background, the next ``write`` or
        ``wait`` raises the error.
        """
        self.wait()
        self._count += 1
        number = self._count
        if self._in_background:
            content = content.copied()

        def run() -> None:
            self._write(final, number, content)
            if self._session.is_main:
                then()

        if not self._in_background:
            return run()

        def guarded() -> None:
            try:
                run()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=guarded, name="torchbus-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last checkpoint is written, and raise the error of its thread."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self, final: Path, number: int, content: Content) -> None:
        partial = final.with_name(f".{final.name}.{number}{formats.PARTIAL}")
        # the key is only the name, as the folder may have another path on another host
        exchange = CheckpointExchange(self._session, partial.name)
        with contextlib.ExitStack() as claim:
            try:
                if self._session.is_main:
                    _prepare(partial, final, claim)
                exchange.wait_for_rank0()
                refuse_separate(exchange.gather(content.held) or [content.held], final)
                sent = exchange.gather(self._write_files(partial, content, exchange))
                if self._session.is_main:
                    folder.seal(partial, final, content.facts, _files_of_all(partial, sent))
                exchange.wait_for_rank0()
            except OSError as error:
                shutil.rmtree(partial, ignore_errors=True)
                raise CheckpointError(
                    f"checkpoint {final} could not be written: {error.strerror or error}. Earlier"
                    " checkpoints are unchanged; make room, or write to another folder"
                ) from error

    def _write_files(
        self, partial: Path, content: Content, exchange: CheckpointExchange
    ) -> folder.Sent:
        """Write this rank's files, and return their sizes and checksums for rank 0.

        If this rank does not see the folder, return the content of its file instead.
        """
        local_name = f"rank-{exchange.rank}"
        if not self._hosts_share and not partial.is_dir():
            if content.groups is None:
                return {local_name + folder.SUFFIX: folder.pack(content.local)}
            raise CheckpointError(
                f"sharded_save=True, and rank {exchange.rank} does not see {partial.parent}: name a"
                " folder that all hosts share, local_copy=..."
            )
        mine: folder.Sent = {}
        for stem, one in ({local_name: content.local} | content.shared).items():
            name = stem + folder.SUFFIX
            mine[name] = folder.write_file(partial, name, one)
        if content.groups is not None:
            from torchbus_checkpoint.disk import parts

            mine |= parts.write(partial, content.groups, exchange)
        return mine


def _files_of_all(partial: Path, sent: list[folder.Sent]) -> dict[str, FileEntry]:
    """On rank 0: write the files that came packed, and check that the others are visible here."""
    files: dict[str, FileEntry] = {}
    for theirs in sent:
        files |= folder.unpack(partial, theirs)
    seen = set(os.listdir(partial))  # in one request
    for rank, theirs in enumerate(sent):
        names = (name for name in theirs if name not in seen)
        missing = next((name for name in names if not (partial / name).exists()), None)
        if missing is not None:
            raise CheckpointError(
                f"rank 0 does not see {partial / missing}, which rank {rank} has written: all"
                " hosts must share the folder"
            )
    return files


def _prepare(partial: Path, final: Path, claim: contextlib.ExitStack) -> None:
    """Create an empty folder, and lock it for this process until ``claim`` is closed."""
    formats.heal(final)
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    claim.enter_context(formats.claimed(partial))
