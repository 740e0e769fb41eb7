"""torchbus-sharded: optimizer states, gradients and parameters divided over ranks, for any loop."""

from __future__ import annotations

from torchbus_sharded.fsdp import FSDP
from torchbus_sharded.optimizer import ShardedOptimizer

__all__ = ["FSDP", "ShardedOptimizer"]
__version__ = "0.1.0"
