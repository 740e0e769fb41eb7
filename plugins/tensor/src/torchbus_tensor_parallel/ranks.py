"""The ranks as a mesh of data parts and tensor groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torchbus.plugin import Context, dtensors, guarded_groups, strategies


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
        shards = [dtensors.own_part(one) for one in tensors if dtensors.is_sharded(one)]
        copies = [dtensors.own_part(one) for one in tensors if not dtensors.is_sharded(one)]
        strategies.mean_over(copies)
        if self.parts > 1:
            strategies.mean_over(shards, self.mesh.get_group("data"))
