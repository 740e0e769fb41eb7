"""Downloads the newest checkpoint from a store, unless the local folder has one at least as new."""

from __future__ import annotations

import contextlib
import os
import shutil
from functools import partial
from pathlib import Path

from torchbus.plugin import Context, UsageError, warn

from torchbus_checkpoint.disk import choice, folder, formats
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.locks import Claim
from torchbus_checkpoint.options import CheckpointOptions
from torchbus_checkpoint.remote import mirror
from torchbus_checkpoint.remote import store as checkpoint_store
from torchbus_checkpoint.remote.store import Missing, Store, StoreError, patiently

PATIENCE_AFTER_ERROR_S = 5.0


class RemoteJob:
    """Downloads the newest checkpoint, and uploads new ones. The job has locked the local folder.

    Raises CheckpointError if the job can't start.
    """

    def __init__(self, session: Context, options: CheckpointOptions) -> None:
        assert options.url is not None and options.folder is not None
        self._session = session
        store = Store(options.url)
        self._claim = Claim(store)
        session.on_close.callback(self._release)
        newest(store, self._claim, options.folder, options.resume == "auto")

        def choose(there: dict[str, float | None]) -> set[str]:
            return choice.to_keep(there, options.keep, options.monitor is not None, options.mode)

        self.mirror = mirror.RemoteMirror(store, self._claim, options.folder, choose)
        self.mirror.start()
        session.on_close.push(self._close)

    def _close(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close the mirror. This runs after the ranks have joined, so only rank 0 waits."""
        if isinstance(error, Exception):
            return self.mirror.close(PATIENCE_AFTER_ERROR_S, PATIENCE_AFTER_ERROR_S)
        self.mirror.close(self._session.timeout.total_seconds(), mirror.PATIENCE_S)

    def _release(self) -> None:
        """Remove the lock file of a job that could not start."""
        with contextlib.suppress(StoreError):
            if not hasattr(self, "mirror"):
                self._claim.release()


def newest(store: Store, claim: Claim, parent: Path, may_resume: bool) -> None:
    """Copy the newest whole checkpoint to this host, if the local folder lacks it.

    A damaged checkpoint is skipped with a warning. Raises CheckpointError if the store can't be
    reached and the local folder has no checkpoint. Raises UsageError if the store has checkpoints
    and the run may not resume.
    """
    try:
        patiently(claim.take)
        whole = [one for one in patiently(lambda: checkpoint_store.there(store)) if one.is_whole]
        if whole and not may_resume:
            raise UsageError(
                f"resume='never', but {store.url} has checkpoints of an earlier run, the last one"
                f" {whole[-1].name}: use another folder, remove them, or resume with resume='auto'"
            )
        _bring_one_of(store, whole, parent)
    except StoreError as error:
        if not choice.automatic(parent):
            raise CheckpointError(
                f"checkpoint={store.url!r}: can't find out whether there is a checkpoint to resume"
                f" from: {error}"
            ) from None
        warn(
            f"{store.url} can't be reached ({error}): resuming from what is in {parent}, though"
            " there may be a newer one"
        )


def _bring_one_of(store: Store, whole: list[checkpoint_store.There], parent: Path) -> None:
    here = [one.name for one in choice.automatic(parent) if _is_whole(one)]
    for one in reversed(whole):
        if one.local in here:
            return None
        try:
            return patiently(partial(bring, store, one.name, parent / one.local))
        except CheckpointError as error:
            warn(f"{store.url}/{one.name} is skipped: {error}")


def _is_whole(checkpoint: Path) -> bool:
    try:
        return bool(folder.verify(checkpoint))
    except CheckpointError:
        return False


def bring(store: Store, name: str, final: Path) -> None:
    """Copy one checkpoint, whole or not at all, and check it.

    Raises StoreError if the store fails, and CheckpointError if the checkpoint is damaged or can't
    be written here.
    """
    hidden = final.with_name(f".{final.name}.0{formats.PARTIAL}")
    shutil.rmtree(hidden, ignore_errors=True)
    try:
        os.makedirs(hidden)
        store.get(f"{name}/{folder.MANIFEST}", hidden / folder.MANIFEST, folder.MAX_JSON_BYTES)
        for file, entry in folder.manifest(hidden)["files"].items():
            store.get(f"{name}/{file}", hidden / file, entry["bytes"])
        folder.verify(hidden)
        formats.remove(final)
        os.replace(hidden, final)
        folder.flush(final.parent)
    except Missing as error:
        raise CheckpointError(f"a file is missing: {error}") from None
    except OSError as error:
        raise CheckpointError(
            f"{store.url}/{name} can't be copied to {final}: {error.strerror or error}"
        ) from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def to_this_host(session: Context, options: CheckpointOptions, chosen: Path) -> Path:
    """Return where this host's ranks find the checkpoint that rank 0 has chosen.

    If they do not see rank 0's folder, the host's first rank downloads the checkpoint.
    """
    if options.url is None or options.folder is None:
        return chosen
    found = options.folder / chosen.name
    if session.is_main or _is_there(found):
        return found
    assert session.job is not None
    if session.local_rank == 0:
        _bring_chosen(Store(options.url), found)
    elif not session.job.wait_until(lambda _: _is_there(found), session.timeout.total_seconds()):
        raise CheckpointError(
            f"{found} did not reach the host of rank {session.rank} in time: copy it there, or give"
            " the session a longer timeout_s"
        )
    return found


def _bring_chosen(store: Store, found: Path) -> None:
    try:
        alike = [
            one
            for one in patiently(lambda: checkpoint_store.there(store))
            if one.local == found.name and one.is_whole
        ]
        if not alike:
            raise CheckpointError(
                f"rank 0 resumes from its local copy of {found.name}, which was not sent to"
                f" {store.url}: copy it to {found} on each host"
            )
        patiently(lambda: bring(store, alike[-1].name, found))
    except StoreError as error:
        raise CheckpointError(f"{found.name} can't be copied to this host: {error}") from None


def _is_there(found: Path) -> bool:
    """Whether the checkpoint exists. ``listdir`` makes NFS refresh its cache."""
    with contextlib.suppress(OSError):
        return folder.MANIFEST in os.listdir(found)
    return False
