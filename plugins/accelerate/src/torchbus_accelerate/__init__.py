"""torchbus-accelerate: logs, checkpoints and reports of a session for loops that use Accelerate."""

from __future__ import annotations

from torchbus_accelerate.plugin import Accelerate

__all__ = ["Accelerate"]
