"""torchbus-accelerate: a loop that uses Accelerate, under a session."""

from __future__ import annotations

from torchbus_accelerate.plugin import Accelerate

__all__ = ["Accelerate"]
