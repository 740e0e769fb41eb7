"""The ranks as a mesh of data parts and tensor groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchbus.plugin import Context

from torchbus_strategy import compat
from torchbus_strategy.parameters import averaging


class Ranks:
    """All ranks call the constructor, which opens process groups.

    ``mesh`` has two dimensions: "dp", with the number of parts of the data, and "tp", with the
    number of ranks that share a layer. ``tensor`` is the second.
    """

    def __init__(self, session: Context) -> None:
        self.parts, self.mesh = session.world.data.parts, session.world.mesh
        self.tensor = self.mesh["tp"]
        self.size = self.tensor.size()

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each by its mean over all ranks or, of shards, over those with the same shard.

        In place. All ranks call it with tensors of the same shapes, dtypes and devices.
        """
        shards = [compat.own_part(one) for one in tensors if compat.is_sharded(one)]
        copies = [compat.own_part(one) for one in tensors if not compat.is_sharded(one)]
        averaging.mean_over(copies)
        if self.parts > 1:
            averaging.mean_over(shards, self.mesh.get_group("dp"))
