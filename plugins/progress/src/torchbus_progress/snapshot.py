"""What the bar shows at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Snapshot:
    """``done`` of ``total`` batches, or another ``unit``, after ``elapsed_s``.

    ``rate`` is per second. ``total`` and ``rate`` are None if they are not known.
    """

    label: str
    done: int
    total: int | None = None
    elapsed_s: float = 0.0
    rate: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    unit: str = "batches"

    @property
    def left_s(self) -> float | None:
        if self.total is None or not self.rate:
            return None
        return max(0, self.total - self.done) / self.rate

    @property
    def part(self) -> float | None:
        """From 0 to 1."""
        return None if not self.total else min(1.0, self.done / self.total)
