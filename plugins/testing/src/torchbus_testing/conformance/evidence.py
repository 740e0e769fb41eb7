"""The records of a case's processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

AFTER = "after.json"


@dataclass(frozen=True)
class Record:
    """The record of one rank, or of the plain process.

    ``hides_gradients``: it could write no gradients down. ``error``: with what it left the loop, or
    "". ``refusal``: the message, if that was a refusal.
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

    ``ranks``: the records by rank, those of the last session. ``reference``: the plain process.
    ``error``, ``refusal``: of the process that continues after the block. ``changed``: what the
    session left changed in torch. ``ended``: False if it was killed after ``seconds``.
    """

    world_size: int
    ranks: Mapping[int, Record]
    reference: Record
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
        """What the session refuses, in its own words."""
        records = [*self.ranks.values(), self.reference]
        reported = [record.refusal for record in records] + [self.refusal]
        return list(dict.fromkeys(text for text in reported if text))

    @property
    def errors(self) -> list[str]:
        """With what the ranks left the loop."""
        reported = [(f"rank {rank}", record.error) for rank, record in sorted(self.ranks.items())]
        reported.append(("after the block", self.error))
        return [f"{where}: {text}" for where, text in reported if text]

    @property
    def complete(self) -> bool:
        """Whether every rank has come to the end of the loop, and the process to its own."""
        return self.ended and not self.status and len(self.ranks) == self.world_size


def write(path: Path, **found: object) -> None:
    """Write what was found, whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(found))
    new.rename(path)


def read_records(folder: Path) -> dict[int, Record]:
    """The records of all ranks that have left one."""
    return {
        int(path.stem.removeprefix("rank")): Record(**json.loads(path.read_text()))
        for path in folder.glob("rank*.json")
    }


def read_after(folder: Path) -> dict[str, str]:
    """The record of the process that continues after the block."""
    path = folder / AFTER
    found: dict[str, str] = (
        json.loads(path.read_text())
        if path.exists()
        else {"error": "", "refusal": "", "changed": ""}
    )
    return found
