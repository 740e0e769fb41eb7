"""``dp`` and ``ddp2``: every rank of a team sees the whole batch, and computes its rows of each forward."""

from __future__ import annotations

from torchbus_ddp.dp.strategy import DDP2, DP

__all__ = ["DDP2", "DP"]
