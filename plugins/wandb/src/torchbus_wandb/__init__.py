"""torchbus-wandb: Weights & Biases as a logger, and one run for scripts that call wandb."""

from __future__ import annotations

from torchbus_wandb.logger import OneWandbRun, WandbLogger

__all__ = ["OneWandbRun", "WandbLogger"]
