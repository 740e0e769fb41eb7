"""Chooses which checkpoint of a folder to resume from, and which ones to keep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from torchbus.plugin import UsageError, warn

from torchbus_checkpoint.disk import divided, folder, formats
from torchbus_checkpoint.errors import CheckpointError, Damaged, NewerFormat
from torchbus_checkpoint.loop.contents import LoopContents
from torchbus_checkpoint.options import CheckpointOptions, refuse_url
from torchbus_checkpoint.state import forms
from torchbus_checkpoint.state.plain import State, gathered

PREFIX = "step-"
One = TypeVar("One", str, Path)


def automatic(parent: Path) -> list[Path]:
    """Return the automatic checkpoints, oldest first."""
    return [found for found in folder.found(parent) if found.name.startswith(PREFIX)]


def latest(parent: str | Path) -> Path | None:
    """Return the newest whole checkpoint in a folder, or None if there is no checkpoint at all.

    Damaged checkpoints are skipped, with a warning that says what is wrong. Raises CheckpointError
    if all are damaged. Raises NewerFormat at a checkpoint that a later version wrote, as it is not
    damaged.
    """
    refuse_url(parent, f"latest({str(parent)!r})")
    problems: list[str] = []
    for candidate in reversed(automatic(Path(parent))):
        try:
            folder.verify(candidate)
        except NewerFormat:
            raise
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warn(f"{problem}: resuming from {candidate}")
        return candidate
    if problems:
        raise CheckpointError(
            f"no checkpoint in {parent} is whole: {'; '.join(problems)}. Remove them to start again"
        )
    return None


def to_begin_with(options: CheckpointOptions) -> str:
    """Return the checkpoint that a run resumes from, or "" if it starts from the beginning."""
    assert options.folder is not None
    formats.sweep(options.folder)
    if isinstance(options.resume, Path):
        verified(options.resume)
        return str(options.resume)
    there = automatic(options.folder)
    if options.resume == "never" and there:
        raise UsageError(
            f"resume='never', but {options.folder} has checkpoints of an earlier run, the last one"
            f" {there[-1].name}: use another folder, remove them, or resume with resume='auto'"
        )
    return str(latest(options.folder) or "")


def verified(chosen: Path) -> str:
    """Return the step of a checkpoint that the user named. Raises CheckpointError if damaged."""
    formats.heal(chosen)
    try:
        return str(folder.verify(chosen)["step"])
    except Damaged as error:
        raise Damaged(
            f"{error}. `torchbus checkpoint verify {chosen.parent}` says which ones are whole"
        ) from None


def best(parent: str | Path, mode: str = "min") -> Path | None:
    """Return the checkpoint with the best monitored value, or None if none has a value.

    A trial run (``fast_dev_run``) writes no checkpoints, so there it returns None in a new folder.
    """
    refuse_url(parent, f"best({str(parent)!r})")
    return best_after(Path(parent), -1, mode)


def best_after(parent: Path, since: int, mode: str) -> Path | None:
    """Return the best of the checkpoints of more than ``since`` steps, or None."""
    ranked = _ranked(_with_metrics(after(parent, since)), mode)
    return ranked[0] if ranked else None


def after(parent: Path, since: int) -> list[Path]:
    """Return the automatic checkpoints without those of at most ``since`` steps, oldest first."""
    steps = {one: one.name.removeprefix(PREFIX) for one in automatic(parent)}
    return [one for one, step in steps.items() if not step.isdecimal() or int(step) > since]


def to_keep(
    there: dict[One, float | None], keep: int | None, monitored: bool, mode: str
) -> set[One]:
    """Return the last ``keep`` checkpoints or, if ``monitored``, the ``keep`` best and the last.

    ``there`` has the metric of each checkpoint, oldest first.
    """
    last = list(there)
    if keep is None:
        return set(last)
    return set(_ranked(there, mode)[:keep] + last[-1:]) if monitored else set(last[-keep:])


def prune(parent: Path, keep: int | None, monitored: bool, mode: str, since: int) -> None:
    """Delete the checkpoints that ``keep`` excludes.

    If ``monitored``, those of at most ``since`` steps stay: they have other models.
    """
    if keep is None:
        return
    there = after(parent, since) if monitored else automatic(parent)
    wanted = to_keep(
        _with_metrics(there) if monitored else dict.fromkeys(there), keep, monitored, mode
    )
    for candidate in there:
        if candidate not in wanted:
            _remove(candidate)


def _remove(candidate: Path) -> None:
    """Delete a checkpoint. A failure is only a warning, so that training continues."""
    try:
        formats.remove(candidate)
    except OSError as error:
        warn(
            f"checkpoint {candidate}, which keep=... does not keep, can't be removed:"
            f" {error.strerror or error}"
        )


def _with_metrics(candidates: list[Path]) -> dict[Path, float | None]:
    return {candidate: metric(candidate) for candidate in candidates}


def metric(candidate: Path) -> float | None:
    """Return the monitored value of a checkpoint, or None if it has none or can't be read."""
    try:
        return number(folder.manifest(candidate).get("metric"))
    except CheckpointError:
        return None


def number(metric: object) -> float | None:
    """Return the metric, or None if it can't be ranked."""
    return metric if isinstance(metric, int | float) and metric == metric else None


def _ranked(there: dict[One, float | None], mode: str) -> list[One]:
    metrics = {one: metric for one, metric in there.items() if metric is not None}
    return sorted(metrics, key=lambda one: metrics[one], reverse=mode == "max")


TRAINING = "training"


def files(
    in_parts: bool, weights: dict[str, State], training: State, is_main: bool
) -> tuple[dict[str, object], divided.Groups | None]:
    """Return the files that rank 0 writes, and the tensors of which each rank writes its parts.

    All ranks must call this. The names of files have no suffix.
    """
    if in_parts:
        notes, groups = divided.split(weights, training, is_main)
        remaining = gathered({TRAINING: notes}, keep=is_main)
        return (remaining if is_main else {}), groups
    whole = gathered({**weights, TRAINING: training | {"weights": list(weights)}}, keep=is_main)
    return (whole if is_main else {}), None


def loaded(found: Path, contents: LoopContents) -> tuple[State, list[State], Callable[[], None]]:
    """Return the saved state, the states of the models, and a function that reads sharded tensors.

    Call the function once the states are checked. It fills the sharded tensors in them.
    """
    saved = folder.read_file(found, TRAINING)
    in_parts = isinstance(saved, dict) and "groups" in saved
    forms.refuse_unlike(found, TRAINING, saved, forms.IN_PARTS if in_parts else forms.WHOLE)
    if not in_parts:
        with forms.as_written(found, TRAINING):
            of_models = names(saved)
        return saved, [_weights(found, name) for name in of_models], lambda: None
    from torchbus_checkpoint.disk import parts

    index = parts.index(found)
    with forms.as_written(found, TRAINING):
        saved, weights, groups = divided.prepared(saved, contents, index)
    forms.refuse_unlike(found, TRAINING, saved["optimizers"], [forms.OPTIMIZER])
    return saved, weights, lambda: parts.read(found, index, groups)


def names(saved: State) -> list[str]:
    """Return the names of the models' files without suffix, which formats 1 and 2 include.

    Raises ValueError unless each model has a separate file, as a forged list could name one file
    very often.
    """
    found = [name.removesuffix(".pt") for name in saved["weights"]]
    models = len(saved["trained"]) + len(saved["other"])
    if not len(set(found)) == len(found) == models:
        raise ValueError(
            f"{len(set(found))} files of weights, {len(found)} times, for {models} models"
        )
    return found


def _weights(found: Path, name: str) -> State:
    content: State = folder.read_file(found, name)
    forms.refuse_unlike(found, name, content, forms.WEIGHTS)
    return content
