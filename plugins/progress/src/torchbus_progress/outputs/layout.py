"""Fit a snapshot into one line of a terminal."""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text

from torchbus_progress import words
from torchbus_progress.snapshot import Snapshot

GAP = "  "
NARROWEST_BAR, WIDEST_BAR = 8, 40
FULL, HALF, PLAIN = "━", "╸", ("#", "-")


def line(snapshot: Snapshot, columns: int, unicode: bool = True) -> Text:
    """Return a line of at most ``columns``.

    If there is too little room, these are left out one after another: the speed, metrics after the
    second, the time left, the bar, the second metric.
    """
    label, count = snapshot.label, words.count(snapshot)
    facts, metrics = words.facts(snapshot), words.metrics(snapshot)
    bar = [" " * NARROWEST_BAR] if snapshot.part is not None else []
    _shorten([label, count], facts, metrics, bar, columns)
    text = Text(no_wrap=True, overflow="crop")
    text.append(label, "bold")
    if bar and snapshot.part is not None:
        taken = _width([label, count, *facts, *metrics]) + len(GAP)
        text.append(GAP).append_text(_bar(snapshot.part, min(WIDEST_BAR, columns - taken), unicode))
    text.append(GAP + count)
    for fact in facts:
        text.append(GAP).append(fact, "bright_black")
    for metric in metrics:
        name, value = metric.rsplit(" ", 1)
        text.append(GAP).append(f"{name} ", "cyan").append(value, "bold")
    text.truncate(columns)
    return text


def _shorten(
    kept: list[str], facts: list[str], metrics: list[str], bar: list[str], columns: int
) -> None:
    """Remove parts, the least important ones first, until all fit into a line."""
    for parts, place, at_least in (
        (facts, 0, 1),
        (metrics, -1, 2),
        (facts, -1, 0),
        (bar, -1, 0),
        (metrics, -1, 1),
    ):
        while len(parts) > at_least and _width([*kept, *bar, *facts, *metrics]) > columns:
            parts.pop(place)


def _width(parts: list[str]) -> int:
    return sum(cell_len(part) + len(GAP) for part in parts) - len(GAP)


def _bar(part: float, width: int, unicode: bool) -> Text:
    if not unicode:
        marks = int(part * width)
        return Text.assemble(
            (PLAIN[0] * marks, "cyan"), (PLAIN[1] * (width - marks), "bright_black")
        )
    halves = int(part * width * 2)
    done, half = FULL * (halves // 2), HALF * (halves % 2)
    return Text.assemble((done + half, "cyan"), (FULL * (width - len(done + half)), "bright_black"))
