"""torchbus-accelerate: adds a session's plugins to loops that use Accelerate, or its config."""

from __future__ import annotations

from torchbus_accelerate.plugin import Accelerate

__all__ = ["Accelerate"]
