"""The plugin's options, checked before anything starts."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchbus.plugin import UsageError, expect

from torchbus_checkpoint.disk import saving
from torchbus_checkpoint.remote import url as remote

MODES = ("min", "max")
RESUME = ("auto", "never")


@dataclass(frozen=True)
class Options:
    """Where checkpoints are written, how, and which are kept and gone on from. With a ``url``, ``folder`` is the local copy's."""

    folder: Path | None
    url: str | None
    keep: int | None
    monitor: str | None
    mode: str
    resume: str | Path
    async_save: bool
    format: saving.Format


def checked(
    checkpoint: Any, *, local_copy: Any, keep: Any, monitor: Any, mode: Any, resume: Any, async_save: Any, safetensors: Any, sharded_save: Any
) -> Options:
    """Raises UsageError for a wrong type or value."""
    expect("checkpoint", checkpoint, (str, os.PathLike, type(None)), "a folder")
    expect("local_copy", local_copy, (str, os.PathLike, type(None)), "a folder")
    expect("keep", keep, (int, type(None)), "a number of checkpoints, or None")
    expect("monitor", monitor, (str, type(None)), "the name of a value given to s.log")
    expect("resume", resume, (str, os.PathLike), "'auto', 'never' or the path of a checkpoint")
    for name, value in {"async_save": async_save, "safetensors": safetensors, "sharded_save": sharded_save}.items():
        expect(name, value, bool, "True or False")
    if keep is not None and keep < 1:
        raise UsageError(f"keep={keep}: at least the last checkpoint is kept; None keeps all")
    if mode not in MODES:
        raise UsageError(f"mode={mode!r} is unknown: use 'min' or 'max'")
    _refuse_format(safetensors, sharded_save)
    folder, url = _places(checkpoint, local_copy)
    return Options(folder, url, keep, monitor, mode, _resume(resume, folder), async_save, saving.Format(sharded_save, safetensors))


def _places(checkpoint: Any, local_copy: Any) -> tuple[Path | None, str | None]:
    """The local folder, and the URL of the remote one. An unknown URL is refused here, on every rank."""
    url = checkpoint if checkpoint is not None and remote.is_url(checkpoint) else None
    if url is None and None not in (checkpoint, local_copy):
        raise UsageError(f"local_copy={str(local_copy)!r} is about a remote folder, checkpoint='s3://...': leave it out")
    if url is None:
        return None if checkpoint is None else Path(checkpoint).absolute(), None
    remote.refuse_unknown(url)
    return Path(local_copy or remote.local_folder(url)).absolute(), url


def _refuse_format(safetensors: bool, sharded_save: bool) -> None:
    if safetensors and sharded_save:
        raise UsageError("safetensors=True writes whole weights, which no rank has with sharded_save=True: leave one of them out")
    if safetensors and importlib.util.find_spec("safetensors") is None:
        raise UsageError("safetensors=True needs a package that is not installed: pip install safetensors")
    if sharded_save:
        saving.need_safe_parts()


def _resume(resume: str | os.PathLike[str], folder: Path | None) -> str | Path:
    if resume in RESUME:
        return str(resume)
    refuse_url(resume, f"resume={str(resume)!r}")
    if not Path(resume).is_dir():
        raise UsageError(f"resume={str(resume)!r} is no checkpoint: use 'auto', 'never' or the folder of one")
    if folder is None:
        raise UsageError(f"resume={str(resume)!r} without checkpoint=...: name the folder that new checkpoints are written to")
    return Path(resume).absolute()


def refuse_url(path: str | os.PathLike[str], what: str) -> None:
    """Raises UsageError where a local folder is needed."""
    if remote.is_url(path):
        raise UsageError(f"{what}: this must be a local folder; checkpoint='s3://...' writes to a remote one, and resumes from it")
