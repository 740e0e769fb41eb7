"""``dp`` and ``ddp2``: the ranks of a team see one batch, and compute its rows in each forward."""

from __future__ import annotations

from torchbus_ddp.dp.strategy import DDP2, DP

__all__ = ["DDP2", "DP"]
