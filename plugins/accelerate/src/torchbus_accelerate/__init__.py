"""torchbus-accelerate: runs loops that use Accelerate, or its config file, in a session."""

from __future__ import annotations

from torchbus_accelerate.plugin import Accelerate

__all__ = ["Accelerate"]
