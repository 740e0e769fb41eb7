"""All ranks write one checkpoint together, without a collective: each its own file, rank 0 the rest and the name."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchbus import Session
from torchbus.errors import TorchbusError

from torchbus_checkpoint import folder
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.plain import copied

Files = dict[str, Any]


class Writer:
    """``in_background``: the step pays for a copy in main memory, a thread writes it. One at a time."""

    def __init__(self, session: Session, in_background: bool) -> None:
        self._session = session
        self._in_background = in_background
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._count = 0

    def write(self, final: Path, shared: Files, own: Any, facts: dict[str, Any], then: Callable[[], None] = lambda: None) -> None:
        """``shared`` is written by rank 0 alone, ``own`` by each rank; ``then`` is called on rank 0 when it is done.

        All ranks call it alike. Raises CheckpointError where it can't be written; in the background, at the next call.
        """
        self.wait()
        self._count += 1
        number = self._count

        def run() -> None:
            self._write(final, number, shared, own, facts)
            if self._session.is_main:
                then()

        if not self._in_background:
            return run()
        shared, own = copied(shared), copied(own)
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

    def _write(self, final: Path, number: int, shared: Files, own: Any, facts: dict[str, Any]) -> None:
        partial = final.with_name(f".{final.name}.{number}{folder.PARTIAL}")
        try:
            if self._session.is_main:
                shutil.rmtree(partial, ignore_errors=True)
                os.makedirs(partial)
            self._meet(f"{partial}/made", 0)
            files = self._write_files(partial, shared, own)
            if self._session.is_main:
                folder.seal(partial, final, facts, files)
            self._meet(f"{partial}/sealed", 0)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(
                f"checkpoint {final} could not be written: {error.strerror or error}. Those written before are as they were; "
                "make room, or write to another place"
            ) from error

    def _write_files(self, partial: Path, shared: Files, own: Any) -> dict[str, folder.Entry]:
        names = [f"rank-{rank}.pt" for rank in range(self._session.world_size)]
        files = {names[self._session.rank]: folder.write_file(partial, names[self._session.rank], own)}
        if self._session.is_main:
            files |= {name: folder.write_file(partial, name, content) for name, content in shared.items()}
        for rank, name in enumerate(names):
            if self._session.world_size > 1 and (self._session.is_main or rank == self._session.rank):
                text = self._tell(f"{partial}/{name}", json.dumps(files.get(name)), rank)
                files[name] = json.loads(text)
                if not (partial / name).exists():
                    raise CheckpointError(f"rank 0 does not see {partial / name}, which rank {rank} has written: all hosts must share the folder")
        return files

    def _meet(self, key: str, rank: int) -> None:
        self._tell(key, "", rank)

    def _tell(self, key: str, text: str, rank: int) -> str:
        """What ``rank`` says under a key: it sets it, the others wait for it."""
        session = self._session
        if session.world_size == 1:
            return text
        if session.rank == rank:
            session.world.shared.set(key, text)
            return text
        assert session.job is not None
        if not session.job.wait_until(lambda store: bool(store.check([key])), session.timeout.total_seconds()):
            raise CheckpointError(f"rank {rank} did not write its part of a checkpoint within {session.timeout.total_seconds():g} s ({key})")
        return session.world.shared.get(key).decode()


def agree(session: Session, key: str, choose: Callable[[], str]) -> str:
    """What rank 0 has chosen, on every rank, without a collective."""
    if session.world_size == 1:
        return choose()
    store = session.world.shared
    if session.is_main:
        try:
            text = "+" + choose()
        except TorchbusError as error:
            store.set(key, "-" + str(error))
            raise
        store.set(key, text)
        return text[1:]
    assert session.job is not None
    if not session.job.wait_until(lambda store: bool(store.check([key])), session.timeout.total_seconds()):
        raise CheckpointError("rank 0 did not say which checkpoint to resume from")
    text = store.get(key).decode()
    if text[0] == "-":
        raise CheckpointError(text[1:])
    return text[1:]
