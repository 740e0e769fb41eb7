"""torchbus-checkpoint: checkpoints of a whole loop, and its exact resume."""

from __future__ import annotations

from torchbus_checkpoint.disk.choice import best, latest
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.plugin import Checkpoint

__all__ = ["Checkpoint", "CheckpointError", "best", "latest"]
