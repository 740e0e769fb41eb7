"""What a trial is asked, and what came of it, which travels between processes as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torchbus_advise.observing.facts import Facts, from_json


@dataclass(frozen=True)
class Request:
    """``name``: of the script, or with ``by_module`` of the module. ``options``: those of the
    session. ``then_s``: so long the loop goes on to be timed."""

    name: str
    args: list[str]
    by_module: bool
    is_fake: bool
    steps: int
    options: dict[str, Any] = field(default_factory=dict)
    then_s: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """``facts``: None if the loop did not get as far as one step. ``trace``: what the script
    raised."""

    facts: Facts | None = None
    backwards: int = 0
    error: str = ""
    trace: str = ""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_outcome(path: Path) -> Outcome:
    told = json.loads(path.read_text(encoding="utf-8"))
    return Outcome(**told | {"facts": from_json(told["facts"]) if told["facts"] else None})
