"""Where progress is shown: a terminal, a notebook, or lines."""

from __future__ import annotations

import html
import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, Protocol, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from torchbus_progress import words
from torchbus_progress.words import ProgressState


class Output(Protocol):
    """Shows snapshots. ``pause_s``: the time between two drawings. ``place``: where, as text."""

    pause_s: float
    place: str

    def draw(self, snapshot: ProgressState) -> None:
        """Show a snapshot."""

    def leave(self, snapshot: ProgressState) -> None:
        """A training pass has ended. Leave a line about it, if it took long enough."""

    def end(self, snapshot: ProgressState) -> None:
        """The session ends. Leave a line about it."""

    def close(self) -> None:
        """Restore the terminal."""


def choose(every_s: float, shared: bool) -> Output:
    """Choose the output. ``shared``: other ranks write to the same terminal, line by line."""
    if in_notebook():
        return Notebook()
    return (
        Terminal(sys.stderr)
        if sys.stderr.isatty() and not shared
        else LineWriter(sys.stderr, every_s)
    )


CLEAR_BELOW, UP = "\x1b[J", "\x1b[1A\r"
LONG_PASS_S = 2.0


class Terminal:
    """Draws the bar one line below the cursor.

    So a line of other code (an older logging handler, a C library) comes out whole. Until
    ``close``, the bar disappears before ``sys.stdout`` or ``sys.stderr`` writes. It comes back
    after a line feed. So a progress bar of the loop has the terminal alone, as tqdm ends its
    lines with a carriage return.
    """

    pause_s = 0.1
    place = "a line at the bottom of the terminal, by rank 0"

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = Console(file=stream)
        self._unicode = (stream.encoding or "").lower().startswith("utf")
        self._render(ProgressState("", 0, 1))  # rich is slow the first time
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._visible = False
        self._at_line_start = True
        self._streams = [
            _WatchedStream(self, name)
            for name in ("stdout", "stderr")
            if getattr(sys, name).isatty()
        ]

    def draw(self, snapshot: ProgressState) -> None:
        with self._lock:
            if self._at_line_start:
                for stream in self._streams:
                    stream.flush()
                self._stream.write(f"{CLEAR_BELOW}\n{self._render(snapshot)}{UP}")
                self._stream.flush()
                self._visible = True

    def leave(self, snapshot: ProgressState) -> None:
        if snapshot.elapsed_s >= LONG_PASS_S:
            self.end(snapshot)

    def end(self, snapshot: ProgressState) -> None:
        with self._lock:
            if self._at_line_start:
                self.hide()
                self._stream.write(words.summary(snapshot) + "\n")
                self._stream.flush()

    def close(self) -> None:
        self.hide()
        for stream in self._streams:
            stream.stop()

    def hide(self) -> None:
        if self._visible and os.getpid() == self._pid:
            self._stream.write(CLEAR_BELOW)
            self._stream.flush()
            self._visible = False

    def pass_on(self, stream: TextIO, text: str) -> int:
        """Write what other code writes.

        A process that the loop has forked has no bar. It must not take the lock, which another
        thread may have held.
        """
        if os.getpid() != self._pid:
            return stream.write(text)
        with self._lock:
            self.hide()
            self._at_line_start = text.endswith("\n") if text else self._at_line_start
            return stream.write(text)

    def _render(self, snapshot: ProgressState) -> str:
        with self._console.capture() as drawn:
            self._console.print(line(snapshot, self._columns(), self._unicode), end="")
        return drawn.get()

    def _columns(self) -> int:
        try:
            return max(20, os.get_terminal_size(self._stream.fileno()).columns - 1)
        except (OSError, ValueError):
            return 79


class _WatchedStream:
    """Replaces a stream of ``sys``. Everything but writing is the stream's own."""

    def __init__(self, terminal: Terminal, name: str) -> None:
        self._terminal = terminal
        self._name = name
        self._stream: TextIO = getattr(sys, name)
        setattr(sys, name, self)

    def write(self, text: str) -> int:
        return self._terminal.pass_on(self._stream, text)

    def writelines(self, lines: Iterable[str]) -> None:
        for text in lines:
            self.write(text)

    def stop(self) -> None:
        if getattr(sys, self._name) is self:
            setattr(sys, self._name, self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


GAP = "  "
NARROWEST_BAR, WIDEST_BAR = 8, 40
FULL, HALF, PLAIN = "━", "╸", ("#", "-")


def line(snapshot: ProgressState, columns: int, unicode: bool = True) -> Text:
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
        width = _width([label, count, *facts, *metrics]) + len(GAP)
        text.append(GAP).append_text(_bar(snapshot.part, min(WIDEST_BAR, columns - width), unicode))
    text.append(GAP + count)
    for fact in facts:
        text.append(GAP).append(fact, "bright_black")
    for metric in metrics:
        name, value = metric.rsplit(" ", 1)
        text.append(GAP).append(f"{name} ", "cyan").append(value, "bold")
    text.truncate(columns)
    return text


def _shorten(
    retained: list[str], facts: list[str], metrics: list[str], bar: list[str], columns: int
) -> None:
    """Remove parts, the least important ones first, until all fit into a line."""
    for parts, place, at_least in (
        (facts, 0, 1),
        (metrics, -1, 2),
        (facts, -1, 0),
        (bar, -1, 0),
        (metrics, -1, 1),
    ):
        while len(parts) > at_least and _width([*retained, *bar, *facts, *metrics]) > columns:
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


class LineWriter:
    """Writes at most one line in ``every_s`` seconds, and one at the end."""

    def __init__(self, stream: TextIO, every_s: float) -> None:
        self.pause_s = every_s
        self.place = f"a line on stderr every {every_s:g} s, by rank 0"
        self._stream = stream
        self._written_s = time.monotonic()

    def draw(self, snapshot: ProgressState) -> None:
        self._write(words.sentence(snapshot))

    def leave(self, snapshot: ProgressState) -> None:
        if time.monotonic() - self._written_s >= self.pause_s:
            self._write(words.summary(snapshot))

    def end(self, snapshot: ProgressState) -> None:
        self._write(words.summary(snapshot))

    def close(self) -> None:
        pass

    def _write(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
        self._written_s = time.monotonic()


BAR = (
    '<div style="display:flex;gap:1em;align-items:center;font-family:monospace;'
    'flex-wrap:wrap"><b>{label}</b><progress'
    ' value="{done}" max="{total}" style="flex:1 1'
    ' 8em;max-width:24em"></progress><span>{count}</span><span'
    ' style="opacity:.65">{facts}</span><span>{metrics}</span></div>'
)


def in_notebook() -> bool:
    """Whether the code runs in a Jupyter kernel, which has imported IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class Notebook:
    """A display that is updated in place. What the cell prints stays where it is."""

    pause_s = 0.25
    place = "in the notebook, by rank 0"

    def __init__(self) -> None:
        self._display: Any = None

    def draw(self, snapshot: ProgressState) -> None:
        total = snapshot.total or snapshot.done or 1
        facts, metrics = "  ".join(words.facts(snapshot)), "  ".join(words.metrics(snapshot))
        self._show(
            BAR.format(
                label=html.escape(snapshot.label),
                done=snapshot.done,
                total=total,
                count=words.count(snapshot),
                facts=facts,
                metrics=html.escape(metrics),
            )
        )

    def leave(self, snapshot: ProgressState) -> None:
        pass

    def end(self, snapshot: ProgressState) -> None:
        self._show(f"<code>{html.escape(words.summary(snapshot))}</code>")

    def close(self) -> None:
        self._display = None

    def _show(self, text: str) -> None:
        from IPython.display import HTML, display

        if self._display is None:
            self._display = display(HTML(text), display_id=True)
        else:
            self._display.update(HTML(text))
