"""torchbus-sharded: optimizer states, gradients and parameters divided over ranks, for any loop."""

from __future__ import annotations

from torchbus_sharded.fsdp import FSDP
from torchbus_sharded.optimizer import ShardedOptimizer
from torchbus_sharded.stages import ShardedGradients, ddp_sharded

__all__ = ["FSDP", "ShardedGradients", "ShardedOptimizer", "ddp_sharded"]
__version__ = "0.1.0"
