"""torchbus-ddp: data parallel training of any loop with torch's own DDP reducer."""

from __future__ import annotations

from torchbus_ddp.strategy import DDP, DDPNotebook, DDPSpawn

__all__ = ["DDP", "DDPNotebook", "DDPSpawn"]
