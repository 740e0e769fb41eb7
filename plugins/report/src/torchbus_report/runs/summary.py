"""Summarises a run in a few numbers."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torchbus_report.runs.files import showable
from torchbus_report.runs.media import Media

BY_ITSELF = r"(loss|lr|grad_norm|samples_per_s|step_time_s)(_[0-9]+)?(/|$)"
"""Matches the names that ``torchbus_log.autolog`` logs."""
MOST_RANKS, MOST_PROBLEMS, LONGEST_CELL = 10**7, 3, 200


@dataclass(frozen=True)
class RunNumbers:
    """A run in a few numbers.

    ``loss`` is the last loss on rank 0, and ``best_loss`` the smallest. ``duration_s`` is the time
    of the last line in any file. ``values`` has the last value of each name on rank 0, and
    ``least`` and ``greatest`` have the extremes. ``hyperparams`` has texts by dotted names.
    """

    run: str
    name: str
    state: str
    started: str
    ranks: int
    device: str
    strategy: str
    steps: int
    epochs: int | None
    duration_s: float
    loss: float | None
    best_loss: float | None
    samples_per_s: float | None
    values: dict[str, float]
    least: dict[str, float]
    greatest: dict[str, float]
    hyperparams: dict[str, str]
    notes: list[str]

    @property
    def logged_names(self) -> list[str]:
        """The names that the loop has logged, without those of ``autolog``."""
        return [name for name in self.values if not re.match(BY_ITSELF, name)]

    def plain(self) -> dict[str, object]:
        """Return all fields in the types of JSON. NaN and infinities become strings."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    def cells(self) -> dict[str, str]:
        return {
            "run": self.run,
            "name": self.name if self.name != self.run else "",
            "state": self.state,
            "started": self.started.replace("T", " ")[:16],
            "ranks": str(self.ranks),
            "device": self.device,
            "strategy": self.strategy,
            "steps": f"{self.steps:,}",
            "epochs": "" if self.epochs is None else str(self.epochs),
            "time": clock(self.duration_s),
            "loss": short(self.loss),
            "best loss": short(self.best_loss),
            "samples/s": short(self.samples_per_s),
            "notes": "; ".join(self.notes),
        }


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def of(run: LoggedRun) -> RunNumbers:
    points = run.metrics[min(run.metrics)].points if run.metrics else []
    values, least, greatest = extremes(points)
    losses = [point.values["loss"] for point in points if "loss" in point.values]
    speeds = sorted(
        point.values["samples_per_s"]
        for point in points
        if math.isfinite(point.values.get("samples_per_s", math.nan))
    )
    epochs = [point.epoch for point in points if point.epoch is not None]
    return RunNumbers(
        run=showable(run.folder.name),
        name=run.label,
        state=run.state,
        started=_cell(run, "started", ""),
        ranks=_count(run),
        device=_cell(run, "device", ""),
        strategy=_cell(run, "strategy", "none"),
        steps=max((point.step for point in points if point.step is not None), default=0),
        epochs=max(epochs) + 1 if epochs else None,
        duration_s=max(
            (point.time_s for lines in run.files for point in lines.points), default=0.0
        ),
        loss=losses[-1] if losses else None,
        best_loss=min((loss for loss in losses if math.isfinite(loss)), default=None),
        samples_per_s=speeds[len(speeds) // 2] if speeds else None,
        values=values,
        least=least,
        greatest=greatest,
        hyperparams=flat(run.config.get("hyperparams")),
        notes=notes(run),
    )


def notes(run: LoggedRun) -> list[str]:
    """Return the problems with the files of a run."""
    cut, damaged = sum(lines.cut for lines in run.files), sum(lines.damaged for lines in run.files)
    found = [run.config_error] if run.config_error else []
    found += [f"ended in mid-line on {cut} file{'s' if cut > 1 else ''} (killed?)"] if cut else []
    found += list(dict.fromkeys(lines.problem for lines in run.files if lines.problem))[
        :MOST_PROBLEMS
    ]
    found += [run.media.problem] if run.media.problem else []
    lost = sum(lines.lost for lines in run.files)
    found += [f"{lost} record{'s' if lost > 1 else ''} could not be written"] if lost > 0 else []
    return found + (
        [f"{damaged} damaged line{'s' if damaged > 1 else ''} left out"] if damaged else []
    )


def extremes(points: list[Point]) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return the last, the least and the greatest value of each name. Extremes leave out NaN."""
    last: dict[str, float] = {}
    least: dict[str, float] = {}
    greatest: dict[str, float] = {}
    for point in points:
        last.update(point.values)
        for name, value in point.values.items():
            if not math.isnan(value):
                least[name] = min(value, least.get(name, value))
                greatest[name] = max(value, greatest.get(name, value))
    return last, least, greatest


def flat(value: object, name: str = "") -> dict[str, str]:
    """Return nested settings as texts by dotted names."""
    if isinstance(value, dict) and value:
        return {
            key: text
            for part, inner in value.items()
            for key, text in flat(inner, f"{name}.{part}" if name else str(part)).items()
        }
    if name == "command" and isinstance(value, list):
        return {name: " ".join(map(str, value))}
    return {name: value if isinstance(value, str) else json.dumps(value)} if name else {}


def clock(seconds: float) -> str:
    """Return a duration as text: 0:07, 12:30, 1:02:03."""
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def short(value: float | None) -> str:
    """Return a number with four digits, or as a whole number if it is large; "" for None."""
    return "" if value is None else f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def _cell(run: LoggedRun, name: str, otherwise: str) -> str:
    return str(run.config.get(name) or otherwise)[:LONGEST_CELL]


def _count(run: LoggedRun) -> int:
    found = run.config.get("world_size")
    if type(found) is int and 0 < found <= MOST_RANKS:
        return found
    return max([len(run.metrics), len(run.system), 1])


LONGEST_LABEL = 100


@dataclass(frozen=True)
class Point:
    """One line of a file: step, epoch, time, and numbers by name.

    ``time_s`` counts from the session's start. ``lost`` is the number of records before this line
    that could not be written.
    """

    step: int | None
    epoch: int | None
    time_s: float
    values: dict[str, float]
    lost: int = 0


@dataclass(frozen=True)
class RankFile:
    """The lines of one rank's file.

    ``damaged`` is the number of lines that can't be parsed, and ``lost`` the number of records that
    were never written. ``cut`` is True if the last line is incomplete. ``problem`` says why the
    file, or its rest, can't be read. ``size`` is the number of bytes in complete lines.
    """

    points: list[Point] = field(default_factory=list)
    damaged: int = 0
    cut: bool = False
    lost: int = 0
    problem: str = ""
    size: int = 0

    def and_then(self, more: RankFile) -> RankFile:
        """Return these lines followed by the lines in ``more``."""
        return RankFile(
            self.points + more.points,
            self.damaged + more.damaged,
            more.cut,
            self.lost + more.lost,
            more.problem,
            self.size + more.size,
        )


@dataclass(frozen=True)
class LoggedRun:
    """One run. ``metrics`` and ``system`` have a file for each rank.

    ``config_error`` says why config.json could not be read. ``state`` is "running", "finished",
    "crashed: " and the reason, or "" if that can't be determined.
    """

    folder: Path
    config: dict[str, object]
    metrics: dict[int, RankFile]
    system: dict[int, RankFile]
    config_error: str = ""
    media: Media = field(default_factory=Media)
    state: str = ""

    @property
    def label(self) -> str:
        """The run's name, or the folder's name if it has none."""
        return showable(str(self.config.get("name") or self.folder.name))[:LONGEST_LABEL]

    @property
    def files(self) -> list[RankFile]:
        return [*self.metrics.values(), *self.system.values()]
