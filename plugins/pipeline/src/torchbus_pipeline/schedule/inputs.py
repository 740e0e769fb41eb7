"""What goes into a chain of layers: its input, and what each layer gets besides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torchbus.plugin import Unsupported, leaves, map_tensors

Extra = tuple[tuple[object, ...], Mapping[str, object]]
NO_EXTRA: Extra = ((), {})


class Inputs(NamedTuple):
    """``x``: the input, with samples in dim 0. ``extras``: each layer's other arguments.

    ``by_rows``: the numbers of the tensors, among all of the extras, that have a row for each
    sample.
    """

    x: Tensor
    extras: list[Extra]
    by_rows: frozenset[int]

    def part(self, index: int, count: int) -> Tensor:
        """The input of one micro-batch."""
        return self.x.detach().tensor_split(count)[index]

    def extra(self, layer: int, index: int, count: int) -> Extra:
        """The other arguments of a layer, for one micro-batch."""
        before = sum(len(tensors_in(one)) for one in self.extras[:layer])
        numbers = iter(range(before, before + len(tensors_in(self.extras[layer]))))

        def take(tensor: Tensor) -> Tensor:
            return tensor.tensor_split(count)[index] if next(numbers) in self.by_rows else tensor

        found: Extra = map_tensors(self.extras[layer], take)
        return found


def tensors_in(extra: Extra) -> list[Tensor]:
    return [leaf for leaf in leaves(extra) if isinstance(leaf, Tensor)]


def rows_in(x: Tensor, extras: list[Extra]) -> frozenset[int]:
    """The tensors among all extras that have as many rows as there are samples."""
    found = [tensor for extra in extras for tensor in tensors_in(extra)]
    return frozenset(
        number for number, one in enumerate(found) if one.dim() > 0 and len(one) == len(x)
    )


def check(name: str, x: object, extras: list[Extra]) -> Tensor:
    """The input. Raises Unsupported for what can't be cut into micro-batches or sent."""
    if not isinstance(x, Tensor) or x.dim() == 0 or not len(x):
        kind = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise Unsupported(
            f"the layers of {name} get {kind}: strategy='pipeline' needs a tensor with samples in"
            " dim 0; use strategy='ddp'"
        )
    wanted = [one for extra in extras for one in tensors_in(extra) if one.requires_grad]
    if wanted and torch.is_grad_enabled():
        raise Unsupported(
            f"the layers of {name} get a tensor of shape {tuple(wanted[0].shape)} besides their"
            " input, and it requires gradients, which strategy='pipeline' sends only along the"
            " layers: make it in the layer, detach() it, or use strategy='ddp'"
        )
    return x
