"""torchbus-tensorboard: TensorBoard as a logger."""

from __future__ import annotations

from torchbus_tensorboard.logger import TensorBoardLogger

__all__ = ["TensorBoardLogger"]
