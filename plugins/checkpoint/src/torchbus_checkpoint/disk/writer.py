"""All ranks write one checkpoint together, without a collective: each its own files, rank 0 the rest and the name."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchbus.plugin import Context

from torchbus_checkpoint.agreement.exchange import Exchange
from torchbus_checkpoint.disk import folder, leftovers, packed
from torchbus_checkpoint.disk.divided import Groups
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.state.plain import copied

Files = dict[str, Any]


class Writer:
    """``in_background``: the step pays for a copy in main memory, a thread writes it. One at a time.

    Where not all hosts share the folder (``hosts_share``), rank 0 writes for those that do not see it.
    """

    def __init__(self, session: Context, in_background: bool, hosts_share: bool = True) -> None:
        self._session = session
        self._hosts_share = hosts_share
        self._in_background = in_background
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._count = 0

    def write(
        self, final: Path, shared: Files, own: Any, groups: Groups | None, facts: dict[str, Any], then: Callable[[], None] = lambda: None
    ) -> None:
        """``shared`` is written by rank 0 alone, ``own`` by each rank, and of ``groups`` the parts that it has; ``then`` is called on rank 0
        when it is done.

        All ranks call it alike. Raises CheckpointError where it can't be written; in the background, at the next call.
        """
        self.wait()
        self._count += 1
        number = self._count

        def run() -> None:
            self._write(final, number, shared, own, groups, facts)
            if self._session.is_main:
                then()

        if not self._in_background:
            return run()
        shared, own, groups = copied([shared, own, groups])
        self._thread = threading.Thread(target=self._guarded, args=(run,), name="torchbus-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until the last one is written. Raises what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self._error = error

    def _write(self, final: Path, number: int, shared: Files, own: Any, groups: Groups | None, facts: dict[str, Any]) -> None:
        partial = final.with_name(f".{final.name}.{number}{leftovers.PARTIAL}")
        exchange = Exchange(self._session, partial.name)  # the folder may have another place on another host
        with contextlib.ExitStack() as claim:
            try:
                if self._session.is_main:
                    _prepare(partial, final, claim)
                exchange.meet()
                files = self._write_files(partial, shared, own, groups, exchange)
                if self._session.is_main:
                    folder.seal(partial, final, facts, files)
                exchange.meet()
            except OSError as error:
                shutil.rmtree(partial, ignore_errors=True)
                raise CheckpointError(
                    f"checkpoint {final} could not be written: {error.strerror or error}. Those written before are as they were; "
                    "make room, or write to another place"
                ) from error

    def _write_files(self, partial: Path, shared: Files, own: Any, groups: Groups | None, exchange: Exchange) -> dict[str, folder.Entry]:
        own_name = f"rank-{exchange.rank}.pt"
        if self._hosts_share or partial.is_dir():
            mine = {name: folder.write_file(partial, name, content) for name, content in ({own_name: own} | shared).items()}
        elif groups is None:
            mine = packed.pack(own_name, own)
        else:
            raise CheckpointError(
                f"sharded_save=True, and rank {exchange.rank} does not see {partial.parent}: name a folder that all hosts share, local_copy=..."
            )
        if groups is not None:
            from torchbus_checkpoint.disk import parts  # slow

            mine |= {name: folder.entry(partial / name) for name in parts.write(partial, groups, exchange)}
        files: dict[str, folder.Entry] = {}
        for rank, theirs in enumerate(exchange.gather(mine)):
            files |= packed.unpack(partial, theirs)
            missing = next((name for name in theirs if not (partial / name).exists()), None)
            if missing is not None:
                raise CheckpointError(f"rank 0 does not see {partial / missing}, which rank {rank} has written: all hosts must share the folder")
        return files


def _prepare(partial: Path, final: Path, claim: contextlib.ExitStack) -> None:
    """An empty folder, which is this process's until ``claim`` ends."""
    leftovers.heal(final)
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    claim.enter_context(leftovers.claimed(partial))
