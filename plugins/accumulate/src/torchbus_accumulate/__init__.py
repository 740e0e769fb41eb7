"""torchbus-accumulate: gradient accumulation that equals one big batch."""

from __future__ import annotations

from torchbus_accumulate.plugin import Accumulate

__all__ = ["Accumulate"]
