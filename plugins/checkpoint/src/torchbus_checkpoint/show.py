"""``torchbus checkpoint show``: print the contents of a checkpoint, or a table of a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypedDict, get_args

import torch
from torch import Tensor
from torchbus.plugin import TorchbusError, UsageError

from torchbus_checkpoint.disk import choice, folder, formats
from torchbus_checkpoint.disk.divided import NOTE
from torchbus_checkpoint.disk.formats import FileEntry, Manifest
from torchbus_checkpoint.errors import CheckpointError
from torchbus_cli.parser import table
from torchbus_redaction.redactor import one_line


def verify(path: Path) -> int:
    """Print a line about each checkpoint. Return 1 if one of them is not whole."""
    return max([_verify_one(checkpoint) for checkpoint in checkpoints(path)])


def _verify_one(checkpoint: Path) -> int:
    try:
        files = check(checkpoint)
    except CheckpointError as error:
        print(error)
        return 1
    print(
        f"{one_line(str(checkpoint))}: whole, {len(files)} files with"
        f" {amount(sum(entry['bytes'] for entry in files.values()))}"
    )
    return 0


def check(checkpoint: Path) -> dict[str, FileEntry]:
    """Return the files of a checkpoint. Raises CheckpointError if one has changed or holds code."""
    manifest = safely_manifest(checkpoint)
    files = manifest["files"]
    with reading(checkpoint):
        for rank in range(manifest["world_size"]):
            name = folder.name_of(manifest, f"rank-{rank}")
            if name not in files:
                raise CheckpointError(
                    f"checkpoint {checkpoint} is damaged: the manifest has no {name}"
                )
        folder.verify(checkpoint)
        _read_all(checkpoint, manifest)
        if "groups" in folder.described(checkpoint, choice.TRAINING, manifest):
            from torchbus_checkpoint.disk import parts

            parts.index(checkpoint)
        described(checkpoint, manifest)
    return files


def _read_all(checkpoint: Path, manifest: Manifest) -> None:
    suffix = folder.name_of(manifest, "")
    for name in manifest["files"]:
        if name.endswith(suffix):
            folder.read_file(checkpoint, name.removesuffix(suffix))


class Described(TypedDict):
    """The lines that describe each kind of object. The plugins are those in rank 0's file."""

    models: list[str]
    optimizers: list[str]
    schedulers: list[str]
    scalers: list[str]
    registered: list[str]
    plugins: list[str]


class CheckpointFacts(Described):
    """Facts about one checkpoint, as ``--json`` prints them."""

    checkpoint: str
    step: int
    epoch: int
    ranks: int
    metric: float | None
    format: int
    written_by: dict[str, str]
    bytes: int
    files: list[str]


class Broken(TypedDict):
    """A checkpoint that can't be read."""

    checkpoint: str
    error: str


Kind = Literal["models", "optimizers", "schedulers", "scalers", "registered", "plugins"]
KINDS: tuple[Kind, ...] = get_args(Kind)
COLUMNS = ("checkpoint", "step", "epoch", "ranks", "metric", "size", "written by")


def show(path: Path, as_json: bool) -> int:
    """Print the facts of each checkpoint. Return 1 if one of them can't be read."""
    found = checkpoints(path)
    whole: list[CheckpointFacts] = []
    broken: list[Broken] = []
    for checkpoint in found:
        try:
            whole.append(_facts(checkpoint))
        except CheckpointError as error:
            broken.append({"checkpoint": _name(checkpoint), "error": str(error)})
    if as_json:
        names = [_name(checkpoint) for checkpoint in found]
        in_order = sorted([*whole, *broken], key=lambda one: names.index(one["checkpoint"]))
        print(json.dumps(in_order, indent=2))
    elif found == [path]:
        print(_one(whole[0]) if whole else broken[0]["error"])
    else:
        print(_many(whole, broken))
    return int(bool(broken))


def _name(checkpoint: Path) -> str:
    return one_line(str(checkpoint))


def _facts(checkpoint: Path) -> CheckpointFacts:
    manifest = safely_manifest(checkpoint)
    with reading(checkpoint):
        inside = described(checkpoint, manifest)
    metric = manifest.get("metric")
    return {
        "checkpoint": _name(checkpoint),
        "step": manifest["step"],
        "epoch": manifest["epoch"],
        "ranks": manifest["world_size"],
        "metric": metric if isinstance(metric, int | float) else None,
        "format": manifest["version"],
        "written_by": formats.written_by(manifest),
        "bytes": sum(entry["bytes"] for entry in manifest["files"].values()),
        "files": sorted(manifest["files"]),
        **inside,
    }


def _one(facts: CheckpointFacts) -> str:
    rows = [
        ("step", f"{facts['step']}, in epoch {facts['epoch']}"),
        ("ranks", str(facts["ranks"])),
        ("written by", _writer(facts)),
    ]
    rows += [("metric", f"{facts['metric']:g}")] if facts["metric"] is not None else []
    rows += [(kind, ", ".join(map(one_line, facts[kind]))) for kind in KINDS if facts[kind]]
    rows += [("files", f"{', '.join(map(one_line, facts['files']))}: {amount(facts['bytes'])}")]
    return "\n".join([facts["checkpoint"], table([(f"  {name}", text) for name, text in rows])])


def _many(whole: list[CheckpointFacts], broken: list[Broken]) -> str:
    rows = [tuple(column.upper() for column in COLUMNS), *map(_row, whole)]
    return "\n".join([table(rows), *(one["error"] for one in broken)])


def _row(one: CheckpointFacts) -> tuple[str, ...]:
    counts = (str(one["step"]), str(one["epoch"]), str(one["ranks"]))
    metric = "" if one["metric"] is None else f"{one['metric']:g}"
    return (Path(one["checkpoint"]).name, *counts, metric, amount(one["bytes"]), _writer(one))


def _writer(facts: CheckpointFacts) -> str:
    programs = [f"{name} {version}" for name, version in facts["written_by"].items()]
    return one_line(", ".join([*programs, f"format {facts['format']}"]))


def amount(num_bytes: float) -> str:
    """Write a size as in ``1.5 MB``."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def described(checkpoint: Path, manifest: Manifest) -> Described:
    """Describe one checkpoint. Raises CheckpointError if a file is missing or can't be read."""
    saved = folder.described(checkpoint, choice.TRAINING, manifest)
    weights = (
        saved["models"]
        if "groups" in saved
        else [folder.described(checkpoint, name, manifest) for name in choice.names(saved)]
    )
    rank_0 = folder.described(checkpoint, "rank-0", manifest)
    models = zip(saved["trained"] + saved["other"], weights, strict=True)
    return {
        "models": [_with_size(entry, state) for entry, state in models],
        "optimizers": [_with_size(entry, entry["state"]["state"]) for entry in saved["optimizers"]],
        "schedulers": [_named(entry) for entry in saved["schedulers"]],
        "scalers": [_named(entry) for entry in saved["scalers"]],
        "registered": [str(name) for name in saved["registered"]],
        "plugins": [str(name) for name in rank_0["plugins"]],
    }


def _named(entry: dict[str, str]) -> str:
    return f"{entry['name']} ({entry['class']})"


def _with_size(entry: dict[str, str], state: object) -> str:
    sizes = [torch.Size(shape).numel() for shape in _shapes(state)]
    return f"{_named(entry)} with {len(sizes)} tensors of {sum(sizes)} numbers"


def _shapes(value: object) -> Iterator[list[int]]:
    """Yield the shape of each tensor. For a sharded tensor, the file has a note with the shape."""
    if isinstance(value, Tensor):
        yield list(value.shape)
    elif isinstance(value, dict) and NOTE in value:
        yield value["shape"]
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _shapes(item)


def checkpoints(path: Path) -> list[Path]:
    """Return the checkpoint at the path, or the checkpoints in the folder.

    A folder with the name of a checkpoint counts as one, even if it has no manifest. Raises
    UsageError if there is no checkpoint.
    """
    if not path.is_dir():
        raise UsageError(
            f"there is no folder {path}. Name a checkpoint, or a folder of checkpoints"
        )
    if (path / folder.MANIFEST).exists() or path.name.startswith(choice.PREFIX):
        return [path]
    there = {*folder.found(path), *(one for one in path.glob(f"{choice.PREFIX}*") if one.is_dir())}
    if not there:
        raise UsageError(
            f"there is no checkpoint in {path}: a checkpoint is a folder with a {folder.MANIFEST}"
        )
    return sorted(there)


@contextmanager
def reading(checkpoint: Path) -> Iterator[None]:
    """Turn every error inside into a TorchbusError that names the checkpoint."""
    try:
        yield
    except TorchbusError as error:
        raise type(error)(one_line(str(error))) from None
    # made-up bytes may raise anything in torch's and Python's readers
    except Exception as error:
        message = one_line(str(error).strip().split("\n", 1)[0][:300])
        raise CheckpointError(
            f"checkpoint {one_line(str(checkpoint))} can't be read: {type(error).__name__}:"
            f" {message}"
        ) from None


def safely_manifest(checkpoint: Path) -> Manifest:
    """Return the manifest with printable texts. Raises CheckpointError."""
    with reading(checkpoint):
        content = folder.manifest(checkpoint)
        odd = next((name for name in content["files"] if not name.isprintable()), None)
        if odd is not None:
            raise CheckpointError(
                f"checkpoint {checkpoint} is damaged: {odd!r} is not the name of a file"
            )
        if type(content.get("epoch")) is not int:
            raise CheckpointError(
                f"checkpoint {checkpoint} is damaged: its epoch is {content.get('epoch')!r}, which"
                " is not a number"
            )
    return content
