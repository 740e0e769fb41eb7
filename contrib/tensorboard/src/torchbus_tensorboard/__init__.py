"""torchbus-tensorboard: TensorBoard as a logger."""

from __future__ import annotations

from torchbus_tensorboard.logger import TensorBoardLogger
from torchbus_tensorboard.one_run import OneRun

__all__ = ["OneRun", "TensorBoardLogger"]
