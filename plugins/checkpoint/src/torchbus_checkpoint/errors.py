"""What can be wrong with a checkpoint."""

from __future__ import annotations

from torchbus.plugin import TorchbusError


class CheckpointError(TorchbusError, RuntimeError):
    """A checkpoint can't be written, is damaged, or is not this loop's. The message names it, the facts and the remedy."""


class NewerFormat(CheckpointError):
    """A later version has written it. The message says which version to install."""
