"""torchbus-tpu: EXPERIMENTAL, never run on a TPU. Training on TPUs by torch_tpu."""

from __future__ import annotations

from torchbus_tpu.strategy import TPU

__all__ = ["TPU"]
