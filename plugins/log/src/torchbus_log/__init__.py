"""torchbus-log: ``s.log``, values that are logged automatically, and a folder for each run."""

from __future__ import annotations

from torchbus_log.files import Local
from torchbus_log.plugin import Log

__all__ = ["Local", "Log"]
