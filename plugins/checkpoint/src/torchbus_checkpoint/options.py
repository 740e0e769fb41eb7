"""Validates the plugin's options."""

from __future__ import annotations

import os
from pathlib import Path

from torchbus.plugin import UsageError, expect

from torchbus_checkpoint.disk.folder import MANIFEST
from torchbus_checkpoint.remote import store

MODES = ("min", "max")
RESUME = ("auto", "never")
Place = str | os.PathLike[str]
FOLDER = "a folder ('.' is the current one)"


class CheckpointOptions:
    """Where and how checkpoints are written, which are kept, and which one the run resumes from.

    With a ``url``, ``folder`` is the folder of the local copies. Raises UsageError for a wrong type
    or value.
    """

    def __init__(
        self,
        checkpoint: Place | None,
        *,
        local_copy: Place | None,
        keep: int | None,
        monitor: str | None,
        mode: str,
        load_best: bool,
        resume: Place,
        async_save: bool,
        safetensors: bool,
        sharded_save: bool,
    ) -> None:
        expect("checkpoint", checkpoint, (str, os.PathLike, type(None)), FOLDER)
        expect("local_copy", local_copy, (str, os.PathLike, type(None)), FOLDER)
        expect("keep", keep, (int, type(None)), "a number of checkpoints, or None")
        expect("monitor", monitor, (str, type(None)), "the name of a value given to s.log")
        expect("resume", resume, (str, os.PathLike), "'auto', 'never' or the path of a checkpoint")
        if keep is not None and keep < 1:
            raise UsageError(f"keep={keep}: at least the last checkpoint is kept; None keeps all")
        if mode not in MODES:
            raise UsageError(f"mode={mode!r} is unknown: use 'min' or 'max'")
        expect("load_best", load_best, bool, "True or False")
        expect("async_save", async_save, bool, "True or False")
        expect("safetensors", safetensors, bool, "True or False")
        expect("sharded_save", sharded_save, bool, "True or False")
        self.folder, self.url = _places(checkpoint, local_copy)
        self.resume = _resume(resume, self.folder)
        self.keep, self.monitor, self.mode, self.load_best = keep, monitor, mode, load_best
        self.async_save, self.in_parts = async_save, sharded_save


def _places(checkpoint: Place | None, local_copy: Place | None) -> tuple[Path | None, str | None]:
    """Return the local folder, and the URL or None. Raises UsageError for an unknown URL."""
    if checkpoint is None:
        return None, None
    url = checkpoint if store.is_url(checkpoint) else None
    if url is None:
        if local_copy is not None:
            raise UsageError(
                f"local_copy={str(local_copy)!r} needs a remote folder, as in"
                " checkpoint='s3://...': leave it out"
            )
        return _refuse_checkpoint(Path(checkpoint).absolute()), None
    store.refuse_unknown(str(url))
    return Path(local_copy or store.local_folder(str(url))).absolute(), str(url)


def _refuse_checkpoint(folder: Path) -> Path:
    """Return the folder. Raises UsageError if it is one checkpoint, or a file."""
    if folder.is_file():
        raise UsageError(
            f"checkpoint={str(folder)!r} is a file: pass a folder for new checkpoints. Load the"
            " weights of another library's file by torch.load"
        )
    if os.path.isfile(folder / MANIFEST):
        raise UsageError(
            f"checkpoint={str(folder)!r} is one checkpoint, not a folder of checkpoints: pass"
            f" resume={str(folder)!r} to continue from it, and checkpoint={str(folder.parent)!r} or"
            " another folder for new ones"
        )
    return folder


def _resume(resume: Place, folder: Path | None) -> str | Path:
    if resume in RESUME:
        return str(resume)
    refuse_url(resume, f"resume={str(resume)!r}")
    if not Path(resume).is_dir():
        raise UsageError(
            f"resume={str(resume)!r} is not a checkpoint: use 'auto', 'never' or the folder of one"
        )
    if folder is None:
        raise UsageError(
            f"resume={str(resume)!r} needs checkpoint=..., the folder that new checkpoints are"
            " written to"
        )
    return Path(resume).absolute()


def refuse_url(path: Place, what: str) -> None:
    """Raise UsageError if the path is a URL. ``what`` names the call that needs a local folder."""
    if store.is_url(path):
        raise UsageError(
            f"{what}: this must be a local folder; checkpoint='s3://...' writes to a remote one,"
            " and resumes from it"
        )
