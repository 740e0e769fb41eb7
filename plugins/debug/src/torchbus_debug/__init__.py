"""torchbus-debug: a few batches of everything, the same batches again, and where NaN comes from."""

from __future__ import annotations

from torchbus_debug.limits import Limits

__all__ = ["Limits"]
