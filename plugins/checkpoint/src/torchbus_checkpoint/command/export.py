"""``torchbus checkpoint export``: plain state dicts, in files that nothing of torchbus is needed for."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from torchbus.plugin import UsageError

from torchbus_checkpoint.command import finding, safely
from torchbus_checkpoint.command.show import amount
from torchbus_checkpoint.command.verify import check
from torchbus_checkpoint.disk import choice, folder, saving
from torchbus_checkpoint.loop.contents import Contents
from torchbus_checkpoint.state import capture as state
from torchbus_checkpoint.state.plain import decode

FORMATS = ("pt", "safetensors")
NO_LOOP = Contents([], [], [], [], [])


def export(path: Path, output: Path, format: str, optimizers: bool) -> int:
    """Writes a file for each model, and says which."""
    if format == "safetensors" and importlib.util.find_spec("safetensors") is None:
        raise UsageError("--format safetensors needs a package that is not installed: pip install safetensors")
    checkpoint = _chosen(path)
    check(checkpoint)
    with safely.reading(checkpoint):
        files = _files(checkpoint, format, optimizers)
    for name, content in files.items():
        entry = _write(output, name, content)
        print(f"{output / name}: {amount(entry['bytes'])}, from {safely.printable(str(checkpoint))}")
    return 0


def _chosen(path: Path) -> Path:
    """Of a folder, the newest that is whole."""
    found = finding.checkpoints(path)
    if found == [path]:
        return path
    with safely.reading(path):
        latest = choice.latest(path)
    if latest is None:
        names = ", ".join(safely.printable(one.name) for one in found)
        raise UsageError(f"{path} has checkpoints that a script has named itself: say which of {names}")
    return latest


def _files(checkpoint: Path, format: str, optimizers: bool) -> dict[str, Any]:
    """By name. Of a checkpoint in parts, tensors are put together here."""
    saved, states, read_parts = saving.loaded(checkpoint, NO_LOOP)
    read_parts()
    names = saved.get("weights") or [f"{group}.pt" for group in saved["groups"][: len(states)]]
    weights = {_plain(name.removesuffix(".pt")): decode(one) for name, one in zip(names, states, strict=True)}
    files: dict[str, Any] = {f"{name}.pt": one for name, one in weights.items()}
    if format == "safetensors":
        files = dict(state.as_safetensors(files))
    wanted = saved["optimizers"] if optimizers else []
    return files | {_of_optimizer(entry["name"]): decode(entry["state"]) for entry in wanted}


def _of_optimizer(name: str) -> str:
    return "optimizer.pt" if name == "optimizer" else f"optimizer-{_plain(name)}.pt"


def _plain(name: str) -> str:
    """A name that is no path."""
    return re.sub(r"[^0-9A-Za-z_.#-]+", "_", name).strip("_.")


def _write(output: Path, name: str, content: Any) -> folder.Entry:
    try:
        output.mkdir(parents=True, exist_ok=True)
        return folder.write_file(output, name, content)
    except FileExistsError:
        raise UsageError(f"{output / name} is there already: remove it, or name another folder with --output") from None
    except OSError as error:
        raise UsageError(f"{output / name} can't be written: {error.strerror}") from None
