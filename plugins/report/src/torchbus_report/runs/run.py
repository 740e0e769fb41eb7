"""One run, as far as it can be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from torchbus_report.runs.media import Media
from torchbus_report.runs.showing import showable

LONGEST_LABEL = 100


@dataclass(frozen=True)
class Point:
    """One line of a file: step, epoch, time, and numbers by name.

    ``time_s`` counts from the session's start. ``lost`` lines before it could not be written.
    """

    step: int | None
    epoch: int | None
    time_s: float
    values: dict[str, float]
    lost: int = 0


@dataclass(frozen=True)
class Lines:
    """The lines of one rank's file.

    ``damaged`` lines could not be read, ``lost`` ones were never written. ``cut``: the last line
    has no end. ``problem`` says why the file, or the rest of it, is not read.
    """

    points: list[Point] = field(default_factory=list)
    damaged: int = 0
    cut: bool = False
    lost: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Run:
    """One run. ``metrics`` and ``system`` are by rank.

    ``config_error`` says why config.json could not be read.
    """

    folder: Path
    config: dict[str, object]
    metrics: dict[int, Lines]
    system: dict[int, Lines]
    config_error: str = ""
    media: Media = field(default_factory=Media)

    @property
    def label(self) -> str:
        """Its name, or the folder's name if it has none."""
        return showable(str(self.config.get("name") or self.folder.name))[:LONGEST_LABEL]

    @property
    def files(self) -> list[Lines]:
        return [*self.metrics.values(), *self.system.values()]
