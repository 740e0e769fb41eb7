"""torchbus-tpu: EXPERIMENTAL, never run on a TPU. TPUs by torch_tpu, for any loop."""

from __future__ import annotations

from torchbus_tpu.strategy import TPU

__all__ = ["TPU"]
