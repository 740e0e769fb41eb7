"""Judges the records of a case, and describes violations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from torchbus_testing.conformance import run
from torchbus_testing.conformance.run import GRADIENT

AFTER = "after.json"


@dataclass(frozen=True)
class RunRecord:
    """The record of one rank, or of the plain process.

    ``facts`` must be the same everywhere; ``draws`` are random numbers. ``bound`` is the relative
    difference that rounding explains. ``hides_gradients`` is True if gradients could not be
    recorded. ``error`` is the error that ended the loop, or "". ``refusal`` is its message if it
    was a refusal.
    """

    facts: Mapping[str, object]
    draws: Mapping[str, object]
    bound: float
    parts: int
    hides_gradients: bool = False
    error: str = ""
    refusal: str = ""


@dataclass(frozen=True)
class Evidence:
    """All records of one case.

    ``ranks`` are the records of the last session by rank, and ``reference`` that of the plain
    process. ``error`` and ``refusal`` are those of the process that continues after the block.
    ``changed`` says what the session left changed in torch. ``ended`` is False if the case was
    killed after ``seconds``.
    """

    world_size: int
    ranks: Mapping[int, RunRecord]
    reference: RunRecord
    status: int
    stderr: str
    seconds: float
    ended: bool
    orphans: tuple[str, ...]
    error: str
    refusal: str
    changed: str

    @property
    def refusals(self) -> list[str]:
        """The messages of refusals by the session."""
        records = [*self.ranks.values(), self.reference]
        reported = [record.refusal for record in records] + [self.refusal]
        return list(dict.fromkeys(text for text in reported if text))

    @property
    def errors(self) -> list[str]:
        """The errors that ended the loops of ranks, or the process after the block."""
        reported = [(f"rank {rank}", record.error) for rank, record in sorted(self.ranks.items())]
        reported.append(("after the block", self.error))
        return [f"{where}: {text}" for where, text in reported if text]

    @property
    def complete(self) -> bool:
        """Whether every rank has reached the end of the loop, and the process ended normally."""
        return self.ended and not self.status and len(self.ranks) == self.world_size


def write(path: Path, **found: object) -> None:
    """Write a record atomically."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(found))
    new.rename(path)


def read_records(folder: Path) -> dict[int, RunRecord]:
    """Return the records of all ranks that have written one."""
    return {
        int(path.stem.removeprefix("rank")): RunRecord(**json.loads(path.read_text()))
        for path in folder.glob("rank*.json")
    }


def read_after(folder: Path) -> dict[str, str]:
    """Return the record of the process that continues after the block."""
    path = folder / AFTER
    found: dict[str, str] = (
        json.loads(path.read_text())
        if path.exists()
        else {"error": "", "refusal": "", "changed": ""}
    )
    return found


SHOWN_LINES, SHOWN_PROBLEMS = 12, 4


def same_as_one_process(evidence: Evidence) -> list[str]:
    """Return problems unless all ranks agree, and have the numbers of the plain process."""
    if not evidence.complete:
        return [how_it_ended(evidence)]
    main = evidence.ranks[0]
    return [*_unlike_ranks(evidence), *_unlike(main, evidence.reference), *_draws(evidence)]


def ends_as_diverged(evidence: Evidence) -> list[str]:
    """Return problems unless RanksDiverged has ended all ranks within the time limit."""
    problems = ends_by_error(evidence)
    if not problems and not any("RanksDiverged" in text for text in evidence.errors):
        problems = [f"no rank raised RanksDiverged\n{how_it_ended(evidence)}"]
    return problems


def shows_the_first_error(evidence: Evidence) -> list[str]:
    """Return problems unless the loop's error ended all ranks, is shown, and torch is unchanged."""
    problems = ends_by_error(evidence)
    if not problems and "Planned" not in evidence.stderr:
        problems = [f"the loop's own error is not shown:\n{tail(evidence.stderr)}"]
    return problems + _left_changed(evidence)


def ends_by_error(evidence: Evidence) -> list[str]:
    """Return problems unless an error has ended all ranks within the time limit."""
    if not evidence.ended:
        return [how_it_ended(evidence)]
    if evidence.complete:
        return ["the loop ran to its end on all ranks, without an error or warning"]
    return [f"process left behind: {orphan}" for orphan in evidence.orphans]


def leaves_empty(evidence: Evidence) -> list[str]:
    """Return problems unless torch and the process are unchanged, and no other process is left."""
    if not evidence.complete:
        return [how_it_ended(evidence)]
    left = [f"process left behind: {orphan}" for orphan in evidence.orphans]
    return left + _left_changed(evidence)


def how_it_ended(evidence: Evidence) -> str:
    """Describe how a loop ended that should have reached its end."""
    reported = "\n".join(evidence.errors) or tail(evidence.stderr)
    if not evidence.ended:
        return f"no end within {evidence.seconds:.0f} s\n{reported}"
    came = f"{len(evidence.ranks)} of {evidence.world_size} ranks came to the end of the loop"
    return f"exit status {evidence.status}; {came}\n{reported}"


def tail(text: str) -> str:
    return "\n".join(text.splitlines()[-SHOWN_LINES:])


def _left_changed(evidence: Evidence) -> list[str]:
    return [evidence.changed] if evidence.changed else []


def _unlike_ranks(evidence: Evidence) -> Iterator[str]:
    """Yield facts that are not bit for bit the same on all ranks."""
    main = evidence.ranks[0].facts
    for rank, record in sorted(evidence.ranks.items()):
        for name in sorted(record.facts.keys() & main.keys()):
            ours, theirs = record.facts[name], main[name]
            if not _same(ours, theirs):
                yield f"{name} differs between rank 0 and rank {rank}: {_difference(theirs, ours)}"


def _unlike(ours: RunRecord, theirs: RunRecord) -> Iterator[str]:
    """Yield facts in which a record differs from the plain process."""
    scale = max([0.0, *(_largest(value) for value in theirs.facts.values())])
    for name in sorted(ours.facts.keys() | theirs.facts.keys()):
        if ours.hides_gradients and name.startswith(GRADIENT):
            continue
        if name not in ours.facts or name not in theirs.facts:
            where = "the plain process" if name in theirs.facts else "the session"
            yield f"only {where} has {name}"
        elif not _near(ours.facts[name], theirs.facts[name], ours.bound, scale):
            far = _difference(ours.facts[name], theirs.facts[name])
            yield f"{name} differs from one process: {far} (rounding explains {ours.bound:.1g})"


def _draws(evidence: Evidence) -> Iterator[str]:
    """Yield violations: ranks with different samples must draw differently, others the same."""
    main = evidence.ranks[0]
    for rank, record in sorted(evidence.ranks.items()):
        for name, value in record.draws.items() if rank else ():
            alike = _same(value, main.draws[name])
            if alike and record.parts == evidence.world_size:
                yield f"rank {rank} drew the same {name} as rank 0"
            if not alike and record.parts == 1:
                yield f"rank {rank} drew another {name} than rank 0 for the same samples"


def _numbers(value: object) -> Tensor | None:
    """Return a float64 tensor if the value is a number or a nested list of numbers, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | list):
        return None
    try:
        return torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError):
        return None


def _same(one: object, other: object) -> bool:
    a, b = _numbers(one), _numbers(other)
    if a is None or b is None:
        return bool(one == other)
    return a.shape == b.shape and bool(torch.equal(a.nan_to_num(1e300), b.nan_to_num(1e300)))


def _near(one: object, other: object, bound: float, scale: float) -> bool:
    a, b = _numbers(one), _numbers(other)
    if a is None or b is None or a.shape != b.shape:
        return _same(one, other)
    if not a.numel():
        return True
    allowed = bound * float(b.abs().max()) + run.of_zero(bound) * scale
    return bool((a - b).abs().max() <= allowed)


def _largest(value: object) -> float:
    numbers = _numbers(value)
    return 0.0 if numbers is None or not numbers.numel() else float(numbers.abs().max())


def _difference(one: object, other: object) -> str:
    """Describe how one value differs from another."""
    a, b = _numbers(one), _numbers(other)
    if a is None or b is None or a.shape != b.shape:
        return f"{_short(one)} instead of {_short(other)}"
    error, largest = float((a - b).abs().max()), _largest(other)
    return f"by {error:.3g}, where the largest value is {largest:.3g}"


def _short(value: object) -> str:
    numbers = _numbers(value)
    if numbers is not None and numbers.numel() > 6:
        return f"an array of shape {tuple(numbers.shape)}"
    return repr(value)


def first(problems: Iterable[str], count: int = SHOWN_PROBLEMS) -> list[str]:
    """Return at most ``count`` problems, and a line with the number of the others."""
    every = list(problems)
    more = [f"... and {len(every) - count} more"] if len(every) > count else []
    return [*every[:count], *more]
