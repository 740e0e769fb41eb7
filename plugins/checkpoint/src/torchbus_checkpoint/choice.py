"""Which checkpoint of a folder to resume from, and which to keep."""

from __future__ import annotations

from pathlib import Path

from torchbus.errors import UsageError
from torchbus.notices import warn

from torchbus_checkpoint import folder, leftovers
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.options import Options

PREFIX = "step-"


def automatic(parent: Path) -> list[Path]:
    """The checkpoints that a session wrote by itself, oldest first."""
    return [found for found in folder.found(parent) if found.name.startswith(PREFIX)]


def latest(parent: str | Path) -> Path | None:
    """The newest checkpoint in a folder that is whole, None if there is none at all.

    Damaged ones are passed over with a warning that says what is wrong. Raises CheckpointError if all are damaged.
    """
    problems: list[str] = []
    for candidate in reversed(automatic(Path(parent))):
        try:
            folder.verify(candidate)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warn(f"{problem}: resuming from {candidate}")
        return candidate
    if problems:
        raise CheckpointError(f"no checkpoint in {parent} is whole: {'; '.join(problems)}. Remove them to begin anew")
    return None


def to_begin_with(options: Options) -> str:
    """The checkpoint that a run goes on from, "" where it begins anew."""
    assert options.folder is not None
    leftovers.sweep(options.folder)
    if isinstance(options.resume, Path):
        folder.verify(options.resume)
        return str(options.resume)
    there = automatic(options.folder)
    if options.resume == "never" and there:
        raise UsageError(
            f"resume='never', but {options.folder} has checkpoints of an earlier run, the last one {there[-1].name}: "
            "use another folder, remove them, or go on with resume='auto'"
        )
    return str(latest(options.folder) or "")


def best(parent: str | Path, mode: str = "min") -> Path | None:
    """The checkpoint in a folder with the best value of what was monitored, None if none has one."""
    ranked = _ranked(automatic(Path(parent)), mode)
    return ranked[0] if ranked else None


def prune(parent: Path, keep: int | None, monitored: bool, mode: str) -> None:
    """Remove all but the last ``keep``, or the ``keep`` best and the last."""
    if keep is None:
        return
    there = automatic(parent)
    kept = {*_ranked(there, mode)[:keep], *there[-1:]} if monitored else {*there[-keep:]}
    for candidate in there:
        if candidate not in kept:
            _remove(candidate)


def _remove(candidate: Path) -> None:
    """What can't be removed is no reason to end a training."""
    try:
        leftovers.remove(candidate)
    except OSError as error:
        warn(f"checkpoint {candidate}, which keep=... does not keep, can't be removed: {error.strerror or error}")


def _ranked(candidates: list[Path], mode: str) -> list[Path]:
    metrics: dict[Path, float] = {}
    for candidate in candidates:
        try:
            metric = folder.manifest(candidate).get("metric")
        except CheckpointError:
            continue
        if metric is not None and metric == metric:
            metrics[candidate] = metric
    return sorted(metrics, key=lambda one: metrics[one], reverse=mode == "max")
