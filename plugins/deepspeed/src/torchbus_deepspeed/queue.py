"""Hands gradients to DeepSpeed in the same order on all ranks, as soon as they are ready.

DeepSpeed puts gradients into buckets in the order in which it gets them, and reduces full buckets.
If the ranks' graphs differ, so does this order, and gradients of different parameters would be
added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from torchbus.plugin import Unsupported

from torchbus_deepspeed import _compat

REENTRANT = (
    "backward has made a gradient that its graph did not announce, or has made it twice, as"
    " reentrant checkpointing does: use checkpoint(..., use_reentrant=False)"
)


class Queue:
    """Hands the gradients of ``parameters`` to ``take``, in this order.

    With ``at_once``, this happens while the graph runs, and otherwise at its end.
    """

    def __init__(
        self, parameters: Sequence[Tensor], take: Callable[[Tensor], None], at_once: bool
    ) -> None:
        self._parameters = parameters
        self._index = {id(one): number for number, one in enumerate(parameters)}
        self._take = take
        self._at_once = at_once
        self._handles: list[RemovableHandle] = []
        self._wanted: set[int] = set()
        self._awaited: set[int] = set()
        self._before: dict[int, Tensor] | None = None
        self._next = 0

    def open(self, wanted: set[int], announced: set[int], counts: bool) -> None:
        """Called when the graph begins to run.

        ``wanted`` has the ids of the parameters that some rank reaches, equal on all ranks.
        ``announced`` has the ids of the parameters that this rank's graph reaches. Unless
        ``counts``, this rank contributes zeros.
        """
        self._next, self._wanted, self._awaited = 0, wanted, announced & self._index.keys()
        self._before = None if counts else _copies(self._parameters)
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._made)
            for parameter in self._parameters
            if parameter.requires_grad
        ]
        if self._at_once:
            self._advance()

    def close(self) -> None:
        """Hand over the remaining gradients after the graph has run or failed.

        All ranks hand over the same parameters.
        """
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._awaited = set()
        self._advance()
        self._before = None

    @torch.no_grad()
    def _made(self, parameter: Tensor) -> None:
        if id(parameter) not in self._awaited:
            raise Unsupported(REENTRANT)
        self._awaited.discard(id(parameter))
        if self._at_once:
            self._advance()

    @torch.no_grad()
    def _advance(self) -> None:
        for parameter in self._parameters[self._next :]:
            if id(parameter) in self._awaited:
                return
            self._next += 1
            if id(parameter) in self._wanted:
                self._contribute(parameter)
                self._take(parameter)

    def _contribute(self, parameter: Tensor) -> None:
        """Set the parameter's gradient to this rank's contribution.

        This changes the gradient in place, because at stage 3 the parameter is empty, and torch
        rejects a new gradient of another shape.
        """
        gradient = parameter.grad
        if gradient is None:
            _compat.give_zeros(parameter)
            return
        if gradient.is_sparse:
            gradient = parameter.grad = gradient.to_dense()
        if not gradient.is_contiguous():
            gradient.data = gradient.contiguous()
        if self._before is not None:
            before = self._before.get(id(parameter))
            gradient.zero_() if before is None else gradient.copy_(before)


def _copies(parameters: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return copies of the gradients that earlier backwards have left in ``p.grad``, by id."""
    return {id(one): one.grad.clone() for one in parameters if one.grad is not None}
