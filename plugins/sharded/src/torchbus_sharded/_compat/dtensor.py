"""How DTensor runs operators.

All were seen in 2.13; the package needs 2.6.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, _redistribute
from torchbus.plugin import absent

READ = torch.ops.aten._local_scalar_dense.default
"""What ``tensor.item()`` runs. Without it: AttributeError when the package is imported."""

SEEN_BY = "2.13"
NEED = "forgets the ranks of an earlier session"


def handlers() -> dict[Any, Any]:
    """Operators that DTensor runs in a way of its own. Without ``_op_dispatcher`` or
    ``_custom_op_handlers``: AttributeError when a strategy starts.
    """
    found: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    return found


def forget_meshes() -> None:
    """Torch remembers the outcome of operations with the mesh, and so the rank, of an earlier block
    in this process, or in the one that it was forked from: other ranks would take parts that are
    rank 0's.

    Without ``_op_dispatcher``: AttributeError when a strategy starts. Without
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
