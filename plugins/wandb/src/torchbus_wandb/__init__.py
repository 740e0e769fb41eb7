"""torchbus-wandb: Weights & Biases as a logger, and one run for scripts that call wandb."""

from __future__ import annotations

from torchbus_wandb.logger import OneRun, WandbLogger

__all__ = ["OneRun", "WandbLogger"]
