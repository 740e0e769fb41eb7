"""BatchNorm while a forward is computed for the second time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn import Module
from torch.nn.modules.batchnorm import _NormBase


@contextmanager
def counted_already(block: Module) -> Iterator[None]:
    """The batch is in the running statistics already: inside, they keep their values."""
    norms = [module for module in block.modules() if isinstance(module, _NormBase)]
    kept = [(norm, norm.momentum, norm._buffers.get("num_batches_tracked")) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
        if "num_batches_tracked" in norm._buffers:
            norm._buffers["num_batches_tracked"] = None
    try:
        yield
    finally:
        for norm, momentum, count in kept:
            norm.momentum = momentum
            if "num_batches_tracked" in norm._buffers:
                norm._buffers["num_batches_tracked"] = count
