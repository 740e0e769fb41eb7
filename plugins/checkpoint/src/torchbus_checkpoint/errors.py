"""The errors about checkpoints."""

from __future__ import annotations

from torchbus.plugin import TorchbusError


class CheckpointError(TorchbusError, RuntimeError):
    """A checkpoint can't be written, is damaged, or belongs to another loop."""


class NewerFormat(CheckpointError):
    """A later version has written the checkpoint. The message says which version to install."""
