"""torchbus-earlystop: the end of a loop that no longer gets better, alike on all ranks."""

from __future__ import annotations

from torchbus_earlystop.plugin import EarlyStop, from_options

__all__ = ["EarlyStop", "from_options"]
__version__ = "0.1.0"
