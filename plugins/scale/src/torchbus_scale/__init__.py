"""torchbus-scale: scales learning rates by the effective batch, and finds the batch that fits."""

from __future__ import annotations

from torchbus_scale.plugin import Scale

__all__ = ["Scale"]
