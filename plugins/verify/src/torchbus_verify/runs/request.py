"""What is to be verified, and the one thing in which a run differs from the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchbus_verify.record.steps import Steps
from torchbus_verify.record.writing import Writer

Change = Callable[["Inside"], None]
"""Something done to a run before the script begins: a cause taken away, a larger batch."""


@dataclass(frozen=True)
class Request:
    """The script, the session around it, and how much of it is compared."""

    words: tuple[str, ...]
    """The script and its arguments."""
    by_module: bool = False
    plugins: tuple[object, ...] = ()
    options: dict[str, object] = field(default_factory=dict)
    """Of the session."""
    steps: int | None = 20
    float64: bool = False
    folder: Path = Path(".")
    """The script's own working folder."""

    @property
    def devices(self) -> int:
        given = self.options.get("devices")
        return len(given) if isinstance(given, list) else given if isinstance(given, int) else 2

    def in_float64(self) -> Request:
        return replace(self, float64=True)

    def in_own_precision(self) -> Request:
        return replace(self, float64=False)

    def with_options(self, **options: object) -> Request:
        return replace(self, options={**self.options, **options})

    def with_whole_batches(self) -> Request:
        """Every rank trains on the script's own batches: nothing is divided."""
        kept = {
            name: value
            for name, value in self.options.items()
            if name not in ("batch", "shard_eval")
        }
        return replace(self, options={**kept, "replace_sampler": False})


@dataclass(frozen=True)
class Inside:
    """What a change may act on: the run before its script begins."""

    rank: int
    session: Any
    """Of the run under the session; None in the plain one."""
    steps: Steps
    """Tells of backwards (``record.steps.Steps``)."""
    writer: Writer
    """Writes events into the record."""
