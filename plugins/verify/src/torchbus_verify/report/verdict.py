"""The outcome of a verification."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchbus_verify.causes.cause import Cause
from torchbus_verify.compare.difference import Difference
from torchbus_verify.report.text import text

SAME, INHERENT, WRONG, NOT_COMPARED = range(4)


@dataclass(frozen=True)
class Verdict:
    """``status``: 0 the same, 1 different as the strategy is, 2 different and wrong, 3 not
    compared.
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
        """Whether the numbers are the same, but for rounding."""
        return self.status == SAME

    @property
    def cause(self) -> str:
        """The name of the first cause; "" if there is none."""
        return self.causes[0].name if self.causes else ""

    def __str__(self) -> str:
        return text(self.headline, self.causes, self.notes, self.traceback)
