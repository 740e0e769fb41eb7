"""torchbus-finetune: freezes a backbone, and unfreezes it by schedule."""

from __future__ import annotations

from torchbus_finetune.plugin import Finetune

__all__ = ["Finetune"]
