"""torchbus-deepspeed: DeepSpeed's ZeRO stages and offload, for any loop."""

from __future__ import annotations

from torchbus_deepspeed.strategy import (
    DeepSpeed,
    Stage1,
    Stage2,
    Stage2Offload,
    Stage3,
    Stage3Offload,
)

__all__ = ["DeepSpeed", "Stage1", "Stage2", "Stage2Offload", "Stage3", "Stage3Offload"]
