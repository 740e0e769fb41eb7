"""torchbus-activation: activation checkpointing of unchanged models, under every strategy."""

from __future__ import annotations

from torchbus_activation.plugin import ActivationCheckpointing

__all__ = ["ActivationCheckpointing"]
