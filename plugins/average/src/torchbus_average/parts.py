"""The shards of fsdp: a DTensor, this rank's part of it, and the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, in the same memory. A tensor that is not sharded is its own."""
    found = tensor.detach()
    return cast("DTensor", found).to_local() if is_part(found) else found


def whole(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor, a copy. All ranks call it."""
    found = tensor.detach()
    return cast("DTensor", found).full_tensor() if is_part(found) else found.clone()


def is_part(tensor: Tensor) -> bool:
    """Whether other ranks have the rest of it. It is a DTensor, which torch has moved once."""
    return hasattr(tensor, "full_tensor")


def part_like(tensor: Tensor, value: Tensor, from_whole: bool = False) -> Tensor:
    """A value, sharded as the tensor is. ``from_whole``: it is the whole, else this rank's part."""
    here = value.to(tensor.device, tensor.dtype)
    if not is_part(tensor):
        return here
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(tensor, DTensor)
    mesh, places = tensor.device_mesh, tensor.placements
    if from_whole:
        return distribute_tensor(here, mesh, places, src_data_rank=None)
    shape, stride = tensor.size(), tensor.stride()
    return DTensor.from_local(here, mesh, places, run_check=False, shape=shape, stride=stride)
