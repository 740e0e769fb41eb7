"""torchbus-tensor-parallel: layers divided over ranks, by torch.distributed.tensor.parallel."""

from __future__ import annotations

from torchbus_tensor_parallel.beside import TensorLayers
from torchbus_tensor_parallel.strategy import TensorParallel

__all__ = ["TensorLayers", "TensorParallel"]
