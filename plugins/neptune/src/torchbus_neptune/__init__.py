"""torchbus-neptune: Neptune as a logger, offline or with a self-hosted or compatible server."""

from __future__ import annotations

from torchbus_neptune.logger import NeptuneLogger
from torchbus_neptune.one_run import OneRun

__all__ = ["NeptuneLogger", "OneRun"]
