"""Private names of torch that advise uses; nothing else in this package uses one.

All were seen in torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch.utils import _python_dispatch
from torch.utils.data import dataloader

FakeTensor = fake_tensor.FakeTensor
FakeTensorMode = fake_tensor.FakeTensorMode
unset_fake_temporarily = fake_tensor.unset_fake_temporarily
"""Tensors without memory. Without one of the three: AttributeError when a trial begins."""

DispatchMode = _python_dispatch.TorchDispatchMode
"""Sees every operation of torch. Without it: AttributeError when a trial begins."""

DISPATCHING = ("torch.utils._python_dispatch", "torch._ops", "torch._compile", "torch._dynamo")
"""Modules between a call of the script and a mode.

Without one of them: a value that the script reads is treated as read by torch, and no note says
that it was invented.
"""

DATA_ITERATOR: type[Any] = dataloader._BaseDataLoaderIter
"""Without it: AttributeError when a trial begins."""

LOCAL_SCALAR: object = torch.ops.aten._local_scalar_dense.default
"""The operation of ``item()``. Without it: AttributeError when a trial begins."""

CHECK_GRADIENTS: object = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default
"""The operation by which a GradScaler finds infinite gradients. Without it: AttributeError when a
trial begins.
"""

storage_key: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")
"""A number, unique while a storage lives. Without it: AttributeError at the first forward."""

count_of_values: Callable[[Tensor], int] = Tensor._nnz
"""The number of values of a sparse tensor. Without it: AttributeError when a trial begins."""
