"""``torchbus checkpoint show``: print the contents of a checkpoint, or a table of a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypedDict

from torchbus_checkpoint.command import finding, safely
from torchbus_checkpoint.command.contents import Described, described
from torchbus_checkpoint.disk import formats
from torchbus_checkpoint.errors import CheckpointError
from torchbus_cli.parser import table


class Facts(Described):
    """What is known of one checkpoint, as ``--json`` prints it."""

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
KINDS: tuple[Kind, ...] = (
    "models",
    "optimizers",
    "schedulers",
    "scalers",
    "registered",
    "plugins",
)
COLUMNS = ("checkpoint", "step", "epoch", "ranks", "metric", "size", "written by")


def show(path: Path, as_json: bool) -> int:
    """Print the facts of each checkpoint. Return 1 if one of them can't be read."""
    found = finding.checkpoints(path)
    whole: list[Facts] = []
    broken: list[Broken] = []
    for checkpoint in found:
        try:
            whole.append(_facts(checkpoint))
        except CheckpointError as error:
            broken.append({"checkpoint": _name(checkpoint), "error": str(error)})
    if as_json:
        print(json.dumps(sorted([*whole, *broken], key=_order(found)), indent=2))
    elif found == [path]:
        print(_one(whole[0]) if whole else broken[0]["error"])
    else:
        print(_many(whole, broken))
    return int(bool(broken))


def _order(found: list[Path]) -> Callable[[Facts | Broken], int]:
    names = [_name(checkpoint) for checkpoint in found]
    return lambda one: names.index(one["checkpoint"])


def _name(checkpoint: Path) -> str:
    return safely.printable(str(checkpoint))


def _facts(checkpoint: Path) -> Facts:
    manifest = safely.manifest(checkpoint)
    with safely.reading(checkpoint):
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


def _one(facts: Facts) -> str:
    words = [
        ("step", f"{facts['step']}, in epoch {facts['epoch']}"),
        ("ranks", str(facts["ranks"])),
        ("written by", _writer(facts)),
    ]
    words += [("metric", f"{facts['metric']:g}")] if facts["metric"] is not None else []
    words += [(kind, _listed(facts[kind])) for kind in KINDS if facts[kind]]
    words += [
        ("files", f"{', '.join(map(safely.printable, facts['files']))}: {amount(facts['bytes'])}")
    ]
    return "\n".join([facts["checkpoint"], table([(f"  {name}", text) for name, text in words])])


def _many(whole: list[Facts], broken: list[Broken]) -> str:
    rows = [tuple(column.upper() for column in COLUMNS), *map(_row, whole)]
    return "\n".join([table(rows), *(one["error"] for one in broken)])


def _row(one: Facts) -> tuple[str, ...]:
    metric = "" if one["metric"] is None else f"{one['metric']:g}"
    name = Path(one["checkpoint"]).name
    return (
        name,
        str(one["step"]),
        str(one["epoch"]),
        str(one["ranks"]),
        metric,
        amount(one["bytes"]),
        _writer(one),
    )


def _writer(facts: Facts) -> str:
    programs = [f"{name} {version}" for name, version in facts["written_by"].items()]
    return safely.printable(", ".join([*programs, f"format {facts['format']}"]))


def _listed(entries: list[str]) -> str:
    return ", ".join(map(safely.printable, entries))


def amount(num_bytes: float) -> str:
    """Write a size as in ``1.5 MB``."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
