"""What the loop did with an output, done again for other values of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchbus.plugin import leaves, map_tensors

from torchbus_pipeline.lazily.later import Later, laters_in


class Replay:
    """The operations between a model's output and the loss.

    ``outside``: other tensors that they use and that require gradients, such as the weights of a
    head. In their place, the replay uses ``inner``, whose gradients add up.
    """

    def __init__(self, loss: Later, rows: int) -> None:
        self._loss, self._rows = loss, rows
        self.outside = list({id(one): one for one in _outside(loss, set())}.values())
        self.inner = [one.detach().requires_grad_() for one in self.outside]
        self._inner_of = {
            id(one): inner for one, inner in zip(self.outside, self.inner, strict=True)
        }

    def loss_of(self, output: Tensor, start: int, end: int) -> Tensor:
        """The loss of some rows: ``output`` has those from ``start`` to ``end``."""
        known: dict[int, Tensor] = {}

        def value_of(later: Later) -> Tensor:
            if later.node is None:
                return output
            if id(later) not in known:
                node = later.node
                take = self._taker(later.node, value_of, start, end)
                args, kwargs = map_tensors((node.args, node.kwargs), take)
                with torch.set_grad_enabled(node.trains and torch.is_grad_enabled()):
                    known[id(later)] = node.function(*args, **kwargs)
            return known[id(later)]

        return value_of(self._loss)

    def _taker(
        self, node: Any, value_of: Callable[[Later], Tensor], start: int, end: int
    ) -> Callable[[Tensor], Tensor]:
        """Replaces a tensor by that of the rows. One with a row for each sample, or several, is cut
        as the output is.
        """
        lengths = {len(one) for one in laters_in((node.args, node.kwargs)) if one.dim()}
        whole = (start, end) == (0, self._rows)

        def take(tensor: Tensor) -> Tensor:
            if isinstance(tensor, Later):
                return value_of(tensor)
            inner = self._inner_of.get(id(tensor), tensor)
            if whole or not tensor.dim() or len(tensor) not in lengths or len(tensor) % self._rows:
                return inner
            each = len(tensor) // self._rows
            return inner[each * start : each * end]

        return take


def _outside(later: Later, seen: set[int]) -> list[Tensor]:
    if id(later) in seen or later.node is None:
        return []
    seen.add(id(later))
    found: list[Tensor] = []
    for leaf in leaves((later.node.args, later.node.kwargs)):
        if isinstance(leaf, Later):
            found += _outside(leaf, seen)
        elif isinstance(leaf, Tensor) and leaf.requires_grad and later.node.trains:
            found.append(leaf)
    return found
