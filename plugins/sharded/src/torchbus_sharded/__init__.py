"""torchbus-sharded: divides optimizer states, gradients and parameters over ranks, for any loop."""

from __future__ import annotations

from torchbus_sharded.strategy import FSDP
from torchbus_sharded.zero1 import ShardedGradients, ShardedOptimizer, ddp_sharded

__all__ = ["FSDP", "ShardedGradients", "ShardedOptimizer", "ddp_sharded"]
