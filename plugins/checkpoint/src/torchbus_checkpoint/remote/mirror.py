"""Rank 0's thread, which sends the checkpoints of the local folder to the store.

Training continues if the store can't be reached. The local copies remain, as far as ``keep``
allows, and are sent when the store is back, or by the next run."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchbus_checkpoint.disk import choice, folder
from torchbus_checkpoint.disk.folder import MANIFEST
from torchbus_checkpoint.disk.formats import SENDING
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.locks import Claim
from torchbus_checkpoint.remote import store
from torchbus_checkpoint.remote.store import Store, StoreError, waits
from torchbus_checkpoint.state.jsonable import read_json
from torchbus_rank0.printing import say

PATIENCE_S = 60.0
Chosen = Callable[[dict[str, float | None]], set[str]]


class RemoteMirror:
    """Uploads checkpoints.

    ``choose`` gets names with metrics, oldest first, and returns the names to keep in the store.
    """

    def __init__(self, store: Store, claim: Claim, parent: Path, choose: Chosen) -> None:
        self._store, self._claim, self._parent, self._choose = store, claim, parent, choose
        self._work, self._end = threading.Event(), threading.Event()
        self._sent: dict[str, str] = {}
        self._metrics: dict[str, float | None] = {}
        self._moved_s = time.monotonic()
        self._is_away = self._said_away = self._closing = False
        self._error: CheckpointError | None = None
        self._thread = threading.Thread(target=self._run, name="torchbus-remote", daemon=True)

    def start(self) -> None:
        """Start the thread. It first sends the checkpoints of an earlier run."""
        self._work.set()
        self._thread.start()

    def written(self) -> None:
        """Called when the local folder has one more checkpoint."""
        self._work.set()

    def check(self) -> None:
        """Raise CheckpointError if another job has taken over the store."""
        if self._error is not None:
            raise self._error

    def close(self, patience_s: float, patience_away_s: float) -> None:
        """Wait until all checkpoints are sent, and report those that are not.

        Stop waiting if no data is sent for ``patience_s`` seconds, or ``patience_away_s`` while the
        store can't be reached.
        """
        self._closing, self._moved_s = True, time.monotonic()
        self._work.set()
        while self._thread.is_alive() and time.monotonic() - self._moved_s < (
            patience_away_s if self._is_away else patience_s
        ):
            self._thread.join(0.05)
        self._end.set()
        left = [one.name for one in self._waiting()]
        if left:
            say(
                f"not sent to {self._store.url}: {', '.join(left)}. They are whole in"
                f" {self._parent}; start the script here again to send them"
            )

    # In the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        wait_s = waits()
        while not self._end.is_set():
            try:
                self._send_all()
                wait_s = waits()
                if self._closing:
                    return self._claim.release()
                self._work.wait()
            except StoreError as error:
                self._say_away(error)
                self._pause(wait_s())
            except CheckpointError as error:
                self._error = error
                return None
            except Exception as error:  # each file system has its own errors
                self._say_away(StoreError(repr(error)))
                self._pause(wait_s())

    def _pause(self, seconds: float) -> None:
        """Wait before the next try, but only for a short time if the session is closing."""
        begun_s = time.monotonic()
        while not self._end.is_set() and time.monotonic() - begun_s < (
            min(seconds, 2.0) if self._closing else seconds
        ):
            self._end.wait(0.05)

    def _send_all(self) -> None:
        self._work.clear()
        waiting = self._waiting()
        while waiting and not self._end.is_set():
            self._claim.check()
            self._is_away = False  # the store answers: a slow transfer is worth the wait
            self._send(waiting[-1])
            self._say_back()
            waiting = self._waiting()

    def _waiting(self) -> list[Path]:
        """Return the readable checkpoints that have not been sent, oldest first."""
        found = []
        for one in choice.automatic(self._parent):
            with contextlib.suppress(OSError):
                if self._sent.get(one.name) != store.digest((one / MANIFEST).read_bytes()):
                    found.append(one)
        return found

    def _send(self, one: Path) -> None:
        # the folder may have been removed by keep=, or written again
        with contextlib.suppress(FileNotFoundError), frozen(one) as copy:
            data = (copy / MANIFEST).read_bytes()
            known = store.there(self._store)
            try:
                self._bring(copy, one.name, known)
            except CheckpointError as error:
                say(f"{one} is not sent to {self._store.url}: {error}")
            self._sent[one.name] = store.digest(data)
        self._tidy()

    def _bring(self, copy: Path, local: str, known: list[store.There]) -> None:
        """Send what the store lacks: nothing, a manifest with a new value, or all files."""
        mine = (copy / MANIFEST).read_bytes()
        alike = [one.name for one in known if one.local == local and one.is_whole]
        theirs = self._manifest(alike[-1]) if alike else b""
        if theirs == mine:
            return
        if alike and _facts(theirs).get("files") == _facts(mine)["files"]:
            self._send_file(copy, alike[-1], MANIFEST)
            return
        name = store.free(local, known)
        # the manifest is sent last, as it makes the files a checkpoint
        for file in [*folder.manifest(copy)["files"], MANIFEST]:
            self._send_file(copy, name, file)

    def _send_file(self, copy: Path, name: str, file: str) -> None:
        self._metrics.pop(name, None)
        self._store.put(copy / file, f"{name}/{file}", self._moved)
        self._moved()

    def _tidy(self) -> None:
        """Delete from the store the checkpoints that ``keep`` excludes, and unfinished ones."""
        known = store.there(self._store)
        lost = list(store.superseded(known))
        whole = [one for one in known if one.is_whole and one not in lost]
        wanted = self._choose({one.name: self._metric(one) for one in whole})
        for one in [*lost, *(one for one in whole if one.name not in wanted)]:
            store.remove(self._store, one)
            self._moved()

    def _metric(self, one: store.There) -> float | None:
        """Return the monitored value of a checkpoint. The local copy may have a newer value."""
        known = choice.metric(self._parent / one.local)
        if known is not None:
            return known
        if one.name not in self._metrics:
            data = self._manifest(one.name)
            self._metrics[one.name] = choice.number(_facts(data).get("metric"))
        return self._metrics[one.name]

    def _manifest(self, name: str) -> bytes:
        """Return a manifest of the store; b"" if it is missing, not a file, or too long."""
        with contextlib.suppress(CheckpointError):
            return self._store.read(f"{name}/{MANIFEST}") or b""
        return b""

    def _moved(self, count: int = 0) -> None:
        self._moved_s = time.monotonic()

    def _say_away(self, error: StoreError) -> None:
        if not self._said_away:
            say(
                f"{self._store.url} can't be reached ({error}): training continues, and checkpoints"
                f" stay in {self._parent} until it is back"
            )
        self._is_away = self._said_away = True

    def _say_back(self) -> None:
        if self._said_away:
            say(f"{self._store.url} is back")
        self._said_away = False


def _facts(manifest: bytes) -> dict[str, Any]:
    """Return the unchecked content of a manifest in the store, or {} if it can't be read."""
    with contextlib.suppress(ValueError):
        facts = read_json(manifest)
        return facts if isinstance(facts, dict) else {}
    return {}


@contextlib.contextmanager
def frozen(one: Path) -> Iterator[Path]:
    """Yield a hidden folder with hard links to a checkpoint's files, which take no space.

    Raises FileNotFoundError if the checkpoint is removed or replaced while the links are made.
    """
    copy = one.with_name(f".{one.name}{SENDING}")
    shutil.rmtree(copy, ignore_errors=True)
    try:
        os.makedirs(copy)
        before = (one / MANIFEST).read_bytes()
        for name in os.listdir(one):
            if stat.S_ISREG(os.lstat(one / name).st_mode):  # a link may point to any file
                _link(one / name, copy / name)
        if (one / MANIFEST).read_bytes() != before or not (copy / MANIFEST).exists():
            raise FileNotFoundError(one)
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
