"""torchbus-progress: a progress bar for your own loop."""

from __future__ import annotations

from torchbus_progress.listener import Progress

__all__ = ["Progress"]
