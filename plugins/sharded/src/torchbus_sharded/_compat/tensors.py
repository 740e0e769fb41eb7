"""Private attributes of tensors and modules.

All were seen in 2.6 to 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.utils import _pytree
from torchbus.compat.required import private

parameters: Callable[[Module], dict[str, Any]] = attrgetter("_parameters")
buffers: Callable[[Module], dict[str, Tensor | None]] = attrgetter("_buffers")
temporary_buffers: Callable[[Module], set[str]] = attrgetter("_non_persistent_buffers_set")
"""Of one module, by name. Without one of the three: AttributeError when a model is divided."""

version: Callable[[Tensor], int] = attrgetter("_version")
"""Grows with each change in place. Without it: AttributeError when a meta tensor gets values."""

backward_hooks: Callable[[Any], dict[int, Any] | None] = attrgetter("_backward_hooks")
post_accumulate_hooks: Callable[[Any], dict[int, Any] | None] = attrgetter(
    "_post_accumulate_grad_hooks"
)
"""Of a tensor. Without one of the two: AttributeError when a model is divided."""

RESET_METHODS = ("reset_parameters", "_reset_parameters")
"""Methods that give a module its first values; the second is MultiheadAttention's.

Without it: Unsupported, if such a module is on the meta device.
"""

call_when_accumulated: Callable[[Tensor, Callable[[Tensor], None]], object] = (
    Tensor.register_post_accumulate_grad_hook
)
"""Of any tensor: the method of a DTensor is fsdp's refusal."""

is_view: Callable[[Tensor], bool] = Tensor._is_view
"""Without it: AttributeError when the package is imported."""

tree_map: Callable[[Callable[[Any], Any], Any], Any] = _pytree.tree_map
"""Without it: AttributeError when the package is imported."""

DATA: Any = torch._C.TensorBase.data
"""Of all tensors, ``data``. Without it: AttributeError when the package is imported."""

as_plain_tensors: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunctionSubclass
"""Without it: AttributeError when the package is imported."""

current_graph_task_id: Callable[[], int] = private(
    torch._C, "_current_graph_task_id", "distinguishes a forward inside a backward from the loop's"
)
"""Without it: UsageError at the first forward."""

MODULE_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
"""A module's tables of hooks. Without one: AttributeError at the end of the session."""


def share_backward_hooks(old: Any, new: Any) -> None:
    """Keep ``handle.remove()`` working. Without ``_backward_hooks``: see ``backward_hooks``."""
    if backward_hooks(old):
        new._backward_hooks = backward_hooks(old)


def count_of_collectives() -> Callable[[], int]:
    """How many the main process group has begun. Without ``_get_sequence_number_for_group``:
    AttributeError when a strategy starts.
    """
    count: Callable[[], int] = dist.group.WORLD._get_sequence_number_for_group  # type: ignore[union-attr]
    return count
