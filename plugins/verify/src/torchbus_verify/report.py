"""The report on two runs: on the terminal, as JSON, as HTML."""

from __future__ import annotations

import json
import math
import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any

from torchbus_verify.causes.cause import Cause
from torchbus_verify.compare.difference import Difference


def dumps(verdict: Verdict) -> str:
    """A difference as JSON. Infinite ones (another shape, no gradient) are null."""
    facts = asdict(verdict) | {"same": verdict.same}
    return json.dumps(_finite(facts), indent=2)


def loads(text: str) -> Verdict:
    facts: dict[str, Any] = json.loads(text)
    facts.pop("same")
    facts["causes"] = tuple(Cause(**one) for one in facts["causes"])
    facts["notes"] = tuple(facts["notes"])
    facts["places"] = tuple(_difference(one) for one in facts["places"])
    facts["first"] = facts["first"] and _difference(facts["first"])
    facts["largest"] = math.inf if facts["largest"] is None else facts["largest"]
    return Verdict(**facts)


def _difference(facts: dict[str, Any]) -> Difference:
    return Difference(
        **{**facts, "relative": math.inf if facts["relative"] is None else facts["relative"]}
    )


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


SAME, INHERENT, WRONG, NOT_COMPARED = range(4)


@dataclass(frozen=True)
class Verdict:
    """The verdict about a script. ``status``: 0 the same, 1 different by nature of the strategy, 2
    wrong, 3 not compared.
    """

    status: int
    headline: str
    steps: int = 0
    models: int = 0
    dtype: str = ""
    largest: float = 0.0
    """The largest relative difference of any tensor in any step."""
    allowed: float = 0.0
    """What rounding allows where that difference is."""
    first: Difference | None = None
    """Where the runs begin to differ."""
    causes: tuple[Cause, ...] = ()
    notes: tuple[str, ...] = ()
    traceback: str = ""
    """Of a run that failed."""
    runs: int = 0
    seconds: float = 0.0
    seconds_compared: float = 0.0
    """Of the two runs that are compared."""
    places: tuple[Difference, ...] = field(default=(), repr=False)

    @property
    def same(self) -> bool:
        """Whether the numbers are the same within rounding."""
        return self.status == SAME

    @property
    def cause(self) -> str:
        """The name of the first cause; "" if there is none."""
        return self.causes[0].name if self.causes else ""

    def __str__(self) -> str:
        return text(self.headline, self.causes, self.notes, self.traceback)


WIDTH = 96


def text(
    headline: str, causes: tuple[Cause, ...], notes: tuple[str, ...], traceback: str = ""
) -> str:
    lines = [headline]
    for cause in causes:
        lines += _entry("cause", f"{cause.name}: {cause.found}")
        lines += _entry("remedy" if not cause.inherent else "what to do", cause.remedy)
    for note in notes:
        lines += _entry("note", note)
    if traceback:
        lines += ["", traceback.rstrip()]
    return "\n".join(lines)


def _entry(name: str, text: str) -> list[str]:
    head = f"  {name}: "
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent="    ", break_long_words=False
    )
