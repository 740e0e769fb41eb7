"""Tensors and their averages, in place and as this rank holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torchbus.plugin import UsageError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class Entry:
    """A parameter or buffer of a model, and its average.

    ``count``: how many values are in the average. ``training``: the training value, while the
    parameter holds its average; else None. Under fsdp all three are this rank's shard.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.average = torch.empty_like(tensor, requires_grad=False)
        self.training: Tensor | None = None
        self.count = 0

    def begin(self) -> None:
        """Let the first value be the average."""
        if not self.count:
            local(self.average).copy_(local(self.tensor))

    @property
    def here(self) -> tuple[Tensor, Tensor]:
        """The average and the value, as this rank holds them."""
        return local(self.average), local(self.tensor)

    def swap_in(self) -> None:
        """Put the average in the tensor's place, unless there is none, or it is there."""
        if self.count and self.training is None:
            average, tensor = self.here
            self.training = tensor.clone()
            tensor.copy_(average)

    def swap_out(self) -> None:
        """Restore the training value, bit for bit."""
        if self.training is not None:
            local(self.tensor).copy_(self.training)
            self.training = None

    # Checkpoints ---------------------------------------------------------------------------------

    def state(self) -> dict[str, object]:
        """The state, with whole tensors. All ranks call it."""
        training = None if self.training is None else part_like(self.tensor, self.training)
        return {
            "count": self.count,
            "average": whole(self.average),
            "training": None if training is None else whole(training),
        }

    def load(self, state: dict[str, object]) -> None:
        """Take up a state, of which this rank keeps its part."""
        average, training, count = state["average"], state["training"], state["count"]
        assert isinstance(average, Tensor) and isinstance(count, int)
        if average.shape != self.tensor.shape:
            raise UsageError(
                f"the checkpoint's average has the shape {tuple(average.shape)}, and the tensor of"
                f" this run {tuple(self.tensor.shape)}: resume with the same models"
            )
        local(self.average).copy_(self._here(average))
        self.training = None
        if isinstance(training, Tensor):
            self.training = self._here(training).clone()
        self.count = count

    def _here(self, value: Tensor) -> Tensor:
        """This rank's part of a whole tensor."""
        return local(part_like(self.tensor, value, from_whole=True))


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
