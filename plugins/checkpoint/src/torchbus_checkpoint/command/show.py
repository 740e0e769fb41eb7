"""``torchbus checkpoint show``: what is in a checkpoint, or which are in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchbus.plugin import table

from torchbus_checkpoint.command import finding, safely
from torchbus_checkpoint.command.contents import Described, described
from torchbus_checkpoint.disk import formats
from torchbus_checkpoint.errors import CheckpointError

COLUMNS = ("checkpoint", "step", "epoch", "ranks", "metric", "size", "written by")


def show(path: Path, as_json: bool) -> int:
    """Prints it. Returns 1 if one can't be read."""
    found = finding.checkpoints(path)
    facts = [_facts(checkpoint) for checkpoint in found]
    if as_json:
        print(json.dumps(facts, indent=2))
    elif found == [path]:
        print(_one(facts[0]))
    else:
        print(_many(facts))
    return int(any("error" in one for one in facts))


def _facts(checkpoint: Path) -> dict[str, Any]:
    name = safely.printable(str(checkpoint))
    try:
        manifest = safely.manifest(checkpoint)
        with safely.reading(checkpoint):
            inside = described(checkpoint, manifest)
    except CheckpointError as error:
        return {"checkpoint": name, "error": str(error)}
    metric, number = manifest.get("metric"), manifest["version"]
    return {
        "checkpoint": name, "step": manifest["step"], "epoch": manifest["epoch"], "ranks": manifest["world_size"],
        "metric": metric if isinstance(metric, int | float) else None, "format": number, "written_by": formats.written_by(manifest),
        "bytes": sum(entry["bytes"] for entry in manifest["files"].values()), "files": sorted(manifest["files"]), **inside,
    }  # fmt: skip


def _one(facts: dict[str, Any]) -> str:
    if "error" in facts:
        return str(facts["error"])
    words = [("step", f"{facts['step']}, in epoch {facts['epoch']}"), ("ranks", str(facts["ranks"])), ("written by", _writer(facts))]
    words += [("metric", f"{facts['metric']:g}")] if facts["metric"] is not None else []
    words += [(kind, _listed(facts[kind])) for kind in Described if facts[kind]]
    words += [("files", f"{', '.join(map(safely.printable, facts['files']))}: {amount(facts['bytes'])}")]
    return "\n".join([facts["checkpoint"], table([(f"  {name}", text) for name, text in words])])


def _many(facts: list[dict[str, Any]]) -> str:
    rows = [tuple(column.upper() for column in COLUMNS)]
    rows += [_row(one) for one in facts if "error" not in one]
    return "\n".join([table(rows), *(one["error"] for one in facts if "error" in one)])


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    metric = "" if one["metric"] is None else f"{one['metric']:g}"
    name = Path(one["checkpoint"]).name
    return name, str(one["step"]), str(one["epoch"]), str(one["ranks"]), metric, amount(one["bytes"]), _writer(one)


def _writer(facts: dict[str, Any]) -> str:
    programs = [f"{name} {version}" for name, version in facts["written_by"].items()]
    return safely.printable(", ".join([*programs, f"format {facts['format']}"]))


def _listed(entries: list[str]) -> str:
    return ", ".join(map(safely.printable, entries))


def amount(num_bytes: float) -> str:
    """``1.5 MB``"""
    for unit in ("bytes", "KB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
