"""torchbus-tensorboard: TensorBoard as a logger."""

from __future__ import annotations

from torchbus_tensorboard.logger import OneRun, TensorBoardLogger

__all__ = ["OneRun", "TensorBoardLogger"]
