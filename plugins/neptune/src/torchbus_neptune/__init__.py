"""torchbus-neptune: Neptune as a logger, offline or with a self-hosted or compatible server."""

from __future__ import annotations

from torchbus_neptune.logger import NeptuneLogger, OneNeptuneRun

__all__ = ["NeptuneLogger", "OneNeptuneRun"]
