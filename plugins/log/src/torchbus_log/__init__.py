"""torchbus-log: logs values by ``s.log`` and automatically, and writes a folder for each run."""

from __future__ import annotations

from torchbus_log.files import Local
from torchbus_log.plugin import Log

__all__ = ["Local", "Log"]
