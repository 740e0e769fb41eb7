"""torchbus-tensorboard: TensorBoard as a logger."""

from __future__ import annotations

from torchbus_tensorboard.logger import OneWriter, TensorBoardLogger

__all__ = ["OneWriter", "TensorBoardLogger"]
