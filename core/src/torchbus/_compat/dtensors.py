"""DTensors: tensors that an engine has divided over ranks.

``torch.distributed.tensor`` is not imported here: who has made a DTensor has imported it. Private
names were seen in 2.13.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from torchbus._compat.required import absent

READ = torch.ops.aten._local_scalar_dense.default
"""What ``tensor.item()`` runs. Without it: AttributeError at ``import torchbus``."""

SEEN_BY = "2.13"
NEED = "forgets the ranks of an earlier session"


def is_divided(tensor: Tensor) -> bool:
    """Whether it is a DTensor."""
    divided = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return divided is not None and isinstance(tensor, divided)


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, which shares its memory, or a plain tensor itself."""
    divided: Any = tensor
    part: Tensor = divided.to_local() if is_divided(tensor) else tensor
    return part


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor of which ranks have different parts."""
    divided: Any = tensor
    return is_divided(tensor) and any(one.is_shard() for one in divided.placements)


def placed_as(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient with its parameter's placements: one that is still to be summed gets its sum.

    All ranks of its mesh call it.
    """
    made: Any = gradient
    held: Any = parameter
    if not is_divided(gradient):
        return gradient
    if not is_divided(parameter):
        made = made.full_tensor()
    elif made.placements != held.placements:
        made = made.redistribute(held.device_mesh, held.placements)
    result: Tensor = made
    return result


def handlers() -> dict[Any, Any]:
    """Operators that DTensor runs in a way of its own. Without ``_op_dispatcher`` or
    ``_custom_op_handlers``: AttributeError when a strategy starts.
    """
    from torch.distributed.tensor import DTensor

    found: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    return found


def forget_meshes() -> None:
    """Torch remembers the outcome of operations with the mesh, and so the rank, of an earlier block
    in this process, or in the one that it was forked from: other ranks would take parts that are
    rank 0's.

    It also keeps the mesh, and with it the process group, its threads and its port.

    Without ``_op_dispatcher`` or ``_collective_utils``: an error when a strategy starts. Without
    ``_clear_DTensor_sharding_propagator_cache``, ``_gen_transform_infos``,
    ``clear_redistribute_planner_cache`` or ``build_from_mesh`` in 2.13 or later: UsageError then.
    Older releases need not have them.
    """
    from torch.distributed.tensor import DTensor, _collective_utils, _redistribute

    dispatcher: Any = DTensor._op_dispatcher
    dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    is_new = torch.__version__ >= SEEN_BY
    for holder, name in (
        (torch._C, "_clear_DTensor_sharding_propagator_cache"),
        (_redistribute, "_gen_transform_infos"),
        (_redistribute, "clear_redistribute_planner_cache"),
        (_collective_utils.MeshTopoInfo, "build_from_mesh"),
    ):
        found = getattr(holder, name, None)
        if found is not None:
            getattr(found, "cache_clear", found)()
        elif is_new:
            raise absent(holder, name, NEED)
