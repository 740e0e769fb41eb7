"""The ranks as a mesh of data parts and tensor groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torchbus.plugin import Context, guarded_groups


class Ranks:
    """All ranks call the constructor, which opens process groups.

    ``mesh`` has two dimensions: "data", with the number of parts of the data, and "tensor", with
    the number of ranks that share a layer.
    """

    def __init__(self, session: Context) -> None:
        self.world_size, self.parts = session.world_size, session.world.data.parts
        self.size = self.world_size // self.parts
        with guarded_groups(session):
            self.mesh = init_device_mesh(
                session.device.type, (self.parts, self.size), mesh_dim_names=("data", "tensor")
            )
        self.tensor = self.mesh["tensor"]

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each by its mean over all ranks or, of shards, over those with the same shard.

        In place. All ranks call it with tensors of the same shapes, dtypes and devices.
        """
        shards = [own_part(one) for one in tensors if is_sharded(one)]
        copies = [own_part(one) for one in tensors if not is_sharded(one)]
        _average(copies, None, self.world_size)
        if self.parts > 1:
            _average(shards, self.mesh.get_group("data"), self.parts)


def is_sharded(tensor: Tensor) -> bool:
    """Whether each rank of a tensor group has another part of it."""
    return isinstance(tensor, DTensor) and any(one.is_shard() for one in tensor.placements)


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, which shares its memory, or a plain tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _average(tensors: Sequence[Tensor], group: dist.ProcessGroup | None, size: int) -> None:
    """One all-reduce per dtype and device."""
    for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
        same = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        dist.all_reduce(flat, group=group)
        flat /= size
        for tensor, part in zip(same, flat.split([one.numel() for one in same]), strict=True):
            tensor.copy_(part.view_as(tensor))
