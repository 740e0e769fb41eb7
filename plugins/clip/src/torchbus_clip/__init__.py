"""torchbus-clip: gradient clipping, once per real step."""

from __future__ import annotations

from torchbus_clip.plugin import Clip

__all__ = ["Clip"]
