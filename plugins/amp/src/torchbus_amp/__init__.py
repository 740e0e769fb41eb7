"""torchbus-amp: mixed and reduced precision for any loop."""

from __future__ import annotations

from torchbus_amp.plugin import Precision

__all__ = ["Precision"]
