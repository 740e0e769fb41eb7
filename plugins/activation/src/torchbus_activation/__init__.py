"""torchbus-activation: activation checkpointing, in place, under every strategy."""

from __future__ import annotations

from torchbus_activation.plugin import ActivationCheckpointing

__all__ = ["ActivationCheckpointing"]
__version__ = "0.1.0"
