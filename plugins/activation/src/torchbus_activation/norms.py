"""BatchNorm in the second computation of a forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn import Module

from torchbus_activation._compat import NORM_BASE, buffers


@contextmanager
def counted_already(block: Module) -> Iterator[None]:
    """Keep the running statistics inside: they have counted the batch already."""
    norms = [module for module in block.modules() if isinstance(module, NORM_BASE)]
    kept = [(norm, norm.momentum, buffers(norm).get("num_batches_tracked")) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
        if "num_batches_tracked" in buffers(norm):
            buffers(norm)["num_batches_tracked"] = None
    try:
        yield
    finally:
        for norm, momentum, count in kept:
            norm.momentum = momentum
            if "num_batches_tracked" in buffers(norm):
                buffers(norm)["num_batches_tracked"] = count
