"""The inputs of a chain of layers: its input, and each layer's extra arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torchbus.plugin import Unsupported
from torchbus.tree import leaves, map_tensors

from torchbus_pipeline.schedule.objects import copied, held_in, mutable_in

Extra = tuple[tuple[object, ...], Mapping[str, object]]
NO_EXTRA: Extra = ((), {})


class Inputs(NamedTuple):
    """Inputs of a chain. ``x``: with samples in dim 0. ``extras``: each layer's other arguments.

    ``by_rows``: the places, among all leaves of the extras, of tensors that have a row for each
    sample. ``originals``: the containers and objects that each layer gets from the loop; the
    extras have copies of them.
    """

    x: Tensor
    extras: list[Extra]
    by_rows: frozenset[int]
    originals: list[list[object]]

    def part(self, index: int, count: int) -> Tensor:
        """Return the input of one micro-batch."""
        return self.x.detach().tensor_split(count)[index]

    def extra(self, layer: int, index: int, count: int, known: dict[int, object]) -> Extra:
        """Return the extra arguments of a layer for one micro-batch.

        ``known``: the micro-batch's own copies of what layers could write to.
        """
        before = sum(len(leaves(one)) for one in self.extras[:layer])
        numbers = iter(
            before + place
            for place, leaf in enumerate(leaves(self.extras[layer]))
            if isinstance(leaf, Tensor)
        )

        def take(tensor: Tensor) -> Tensor:
            return tensor.tensor_split(count)[index] if next(numbers) in self.by_rows else tensor

        found: Extra = map_tensors(self.extras[layer], take)
        if not self.originals[layer]:
            return found
        for one in held_in(found):
            if isinstance(one, Tensor) and id(one) not in known:
                has_rows = one.dim() > 0 and len(one) == len(self.x)
                known[id(one)] = one.tensor_split(count)[index] if has_rows else one
        return copied(found, known)


def given_by_loop(x: Tensor, extras: list[Extra], by_rows: frozenset[int]) -> Inputs:
    """Return the inputs, with copies of objects that layers could write to."""
    mine = [mutable_in((*args, *kwargs.values())) for args, kwargs in extras]
    known: dict[int, object] = {}
    copies = [copied(one, known) if some else one for one, some in zip(extras, mine, strict=True)]
    return Inputs(x, copies, by_rows, mine)


def tensors_in(extra: Extra) -> list[Tensor]:
    return [leaf for leaf in leaves(extra) if isinstance(leaf, Tensor)]


def rows_in(x: Tensor, extras: list[Extra]) -> dict[int, bool]:
    """Return, for the leaves of the extras, which tensors have a row per sample.

    By their places: a mask may be None in one batch, and a tensor in another.
    """
    found = [leaf for extra in extras for leaf in leaves(extra)]
    return {
        place: one.dim() > 0 and len(one) == len(x)
        for place, one in enumerate(found)
        if isinstance(one, Tensor)
    }


def check(name: str, x: object, extras: list[Extra]) -> Tensor:
    """Return the input. Raises Unsupported if it can't be cut into micro-batches or sent."""
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
