"""An output of its own in a cell of a notebook."""

from __future__ import annotations

import html
import sys
from typing import Any

from torchbus_progress import words
from torchbus_progress.snapshot import Snapshot

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

    def draw(self, snapshot: Snapshot) -> None:
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

    def leave(self, snapshot: Snapshot) -> None:
        pass

    def end(self, snapshot: Snapshot) -> None:
        self._show(f"<code>{html.escape(words.summary(snapshot))}</code>")

    def close(self) -> None:
        self._display = None

    def _show(self, text: str) -> None:
        from IPython.display import HTML, display

        if self._display is None:
            self._display = display(HTML(text), display_id=True)
        else:
            self._display.update(HTML(text))
