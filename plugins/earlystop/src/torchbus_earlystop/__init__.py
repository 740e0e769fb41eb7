"""torchbus-earlystop: early stopping, decided identically on every rank."""

from __future__ import annotations

from torchbus_earlystop.plugin import EarlyStop, from_options

__all__ = ["EarlyStop", "from_options"]
