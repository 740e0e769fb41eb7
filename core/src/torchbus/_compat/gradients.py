"""Gradients: the engine of autograd, hooks, and how losses are reduced.

All were seen in 2.6 to 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, _utils
from torch.autograd import graph
from torch.nn import Module
from torch.nn.modules import batchnorm
from torch.utils.data import dataloader

from torchbus._compat.required import private

run_engine: Callable[..., object] = private(
    graph, "_engine_run_backward", "runs a backward without checks that a scalar does not need"
)
"""Without it: UsageError at the first backward."""

sparse_values: Callable[[Tensor], Tensor] = Tensor._values
"""Of a sparse tensor that may not be coalesced. Without it: AttributeError when ddp is imported."""

is_view: Callable[[Tensor], bool] = Tensor._is_view
"""Without it: AttributeError when ddp is imported."""

flattened: Callable[[list[Tensor]], Tensor] = _utils._flatten_dense_tensors
unflattened: Callable[[Tensor, list[Tensor]], tuple[Tensor, ...]] = _utils._unflatten_dense_tensors
foreach_copy_: Callable[[list[Tensor], list[Tensor]], None] = private(
    torch, "_foreach_copy_", "writes what rank 0 has sent"
)
"""Values on their way from rank 0. Without one of the three: AttributeError when ddp is imported,
or UsageError at the first broadcast.
"""

DATA_ITERATOR: type[object] = dataloader._BaseDataLoaderIter
"""Without it: AttributeError when ddp is imported."""

BATCH_NORM: type[Module] = batchnorm._BatchNorm
"""Without it: AttributeError when ddp is imported."""

buffers: Callable[[Module], dict[str, Tensor | None]] = attrgetter("_buffers")
"""Of one module, by name. Without it: AttributeError when a model is found."""

tensor_hooks: Callable[[Tensor], dict[int, Any] | None] = attrgetter("_backward_hooks")
"""Those of ``register_hook``. Without it: AttributeError at the first backward."""

post_accumulate_hooks: Callable[[Tensor], dict[int, object] | None] = attrgetter(
    "_post_accumulate_grad_hooks"
)
"""Without it: AttributeError at the first backward."""
