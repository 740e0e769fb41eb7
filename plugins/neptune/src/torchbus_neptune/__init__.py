"""torchbus-neptune: Neptune as a logger: offline, self-hosted, or a server compatible with it."""

from __future__ import annotations

from torchbus_neptune.logger import NeptuneLogger

__all__ = ["NeptuneLogger"]
__version__ = "0.1.0"
