"""torchbus-scale: learning rates scaled by the effective batch, with warm-up; the largest batch size that fits."""

from __future__ import annotations

from torchbus_scale.plugin import Scale

__all__ = ["Scale"]
__version__ = "0.1.0"
