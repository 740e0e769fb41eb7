"""The errors about checkpoints."""

from __future__ import annotations

from torchbus.plugin import TorchbusError


class CheckpointError(TorchbusError, RuntimeError):
    """A checkpoint can't be written, is damaged, or belongs to another loop."""


class Damaged(CheckpointError):
    """A file of the checkpoint is missing, or differs from what was written."""


class NewerFormat(CheckpointError):
    """A later version wrote the checkpoint. The message says which version to install."""
