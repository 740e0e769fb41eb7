"""Private names of torch that tp uses; nothing else in this package uses one.

All were seen in 2.13; the package needs 2.6.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, _redistribute
from torch.nn import Module
from torchbus.plugin import absent

version: Callable[[Tensor], int] = attrgetter("_version")
"""Grows with each change in place. Without it: AttributeError at the first backward."""

parameters: Callable[[Module], dict[str, Any]] = attrgetter("_parameters")
"""Of one module, by name. Without it: AttributeError when a model is divided."""

hooks_before: Callable[[Module], dict[int, Any]] = attrgetter("_forward_pre_hooks")
hooks_after: Callable[[Module], dict[int, Any]] = attrgetter("_forward_hooks")
"""Of one module. Without one of the two: AttributeError when a model is divided."""

backward_hooks: Callable[[Tensor], dict[int, Any] | None] = attrgetter("_backward_hooks")
post_accumulate_hooks: Callable[[Tensor], dict[int, Any] | None] = attrgetter(
    "_post_accumulate_grad_hooks"
)
"""Of a tensor. Without one of the two: AttributeError when a model is divided."""

READ = torch.ops.aten._local_scalar_dense.default
"""What ``tensor.item()`` runs. Without it: AttributeError when the package is imported."""

SEEN_BY = "2.13"
NEED = "forgets the ranks of an earlier session"


def handlers() -> dict[Any, Any]:
    """Operators that DTensor runs in a way of its own. Without ``_op_dispatcher`` or
    ``_custom_op_handlers``: AttributeError when a session starts.
    """
    found: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    return found


def forget_meshes() -> None:
    """Torch remembers the outcome of operations with the mesh, and so the rank, of an earlier block
    in this process, or in the one that it was forked from.

    Without ``_op_dispatcher``: AttributeError when a session starts. Without
    ``_clear_DTensor_sharding_propagator_cache`` or ``_gen_transform_infos`` in 2.13 or later, which
    older releases don't have: UsageError then.
    """
    dispatcher: Any = DTensor._op_dispatcher
    dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    is_new = torch.__version__ >= SEEN_BY
    for holder, name in (
        (torch._C, "_clear_DTensor_sharding_propagator_cache"),
        (_redistribute, "_gen_transform_infos"),
    ):
        found = getattr(holder, name, None)
        if found is not None:
            getattr(found, "cache_clear", found)()
        elif is_new:
            raise absent(holder, name, NEED)


def forget_distribution(module: Module) -> None:
    """Let torch divide the module again in another session: it refuses one that has this mark.

    Without ``_distribute_module_applied``: nothing fails, since torch sets no mark then.
    """
    vars(module).pop("_distribute_module_applied", None)
