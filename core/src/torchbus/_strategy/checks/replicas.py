"""Ranks that all compute the same thing are detected in the first steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Module

from torchbus._batches.taken import Origin
from torchbus._bus.markers import hookimpl
from torchbus._compat.gradients import DATA_ITERATOR
from torchbus._seams.loader import LoaderIterator
from torchbus._session import inventory
from torchbus._session.context import Context
from torchbus._session.notices import warn_of_gradients
from torchbus._strategy.backward import header

LOOKS = 5


class ReplicaWatch:
    """Warns once if all ranks had the same losses in the first steps: then nothing was divided.

    Inputs are compared too, because dropout makes the losses differ.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._looks = 0
        self._equal = 0
        self.input_sum = 0.0
        self._rows = 0  # of the first input of a forward
        self._pass: Origin | None = None  # the latest one that may train

    @hookimpl
    def module_called(self, module: Module, inputs: tuple[object, ...]) -> None:
        """Look at the first call after a backward: it gets the batch."""
        if not self.input_sum:
            tensors = [value.detach() for value in inputs if isinstance(value, Tensor)]
            self.input_sum = sum(map(weighted_sum, tensors))
            self._rows = max([self._rows, *(len(tensor) for tensor in tensors[:1] if tensor.dim())])

    @hookimpl
    def loader_opened(self, iterator: LoaderIterator) -> None:
        if iterator.origin.trains and not iterator.origin.evaluates:
            self._pass = iterator.origin

    def look(self, mean: Sequence[float], sent: Sequence[float]) -> None:
        """Compare what this rank has sent with the mean over ranks, in the first steps."""
        if self._looks >= LOOKS:
            return
        self._looks += 1
        self.input_sum = 0.0
        self._equal += any(
            _equal(mean[slot], sent[slot]) for slot in (header.RAW_LOSS, header.INPUT)
        )
        if self._session.share.indices:
            self._looks = LOOKS
        elif self._looks == self._equal == LOOKS and self._session.is_main:
            warn_of_gradients(self._words())
        if self._looks == LOOKS:
            self._session.seams.retire("module_called")

    def _words(self) -> str:
        same = (
            f"all {self._session.world_size} ranks computed the same thing: their inputs or losses"
            f" were equal in the first {LOOKS} steps. "
        )
        if self._pass is not None and self._pass.share is None:
            return f"{same}This pass is not divided: {self._pass.name}. s.explain() says why"
        if _an_iterator_is_older():
            return (
                same
                + "An iterator of a DataLoader was made before the block: make it inside, where the"
                " session sees it"
            )
        shard, dp = (
            ("torchbus.current().shard(...)", "--strategy dp")
            if self._session.under_command
            else ("s.shard(...)", "strategy='dp'")
        )
        ways = (
            f"The script makes its batches itself: divide them with {shard}, or draw them from"
            " per-rank random numbers"
        )
        divides = f"; {dp} divides each batch in the model's forward, with no change of the script"
        return same + ways + (divides if self._rows >= self._session.world_size else "")


def _an_iterator_is_older() -> bool:
    """Whether there is an iterator of torch that the session has not seen from its first batch."""
    seen = inventory.alive(LoaderIterator)
    return any(
        not any(one.wraps(iterator) for one in seen) for iterator in inventory.alive(DATA_ITERATOR)
    )


def weighted_sum(values: Tensor) -> float:
    """The mean of the values, weighted by their positions: one-hot rows have equal plain sums.

    Returns 0.0 for tensors whose values are not in rows (sparse, nested) or can't be read (meta,
    inside vmap): a check must not stop the loop.
    """
    if values.is_complex() or values.is_nested or values.layout != torch.strided:
        return 0.0
    try:
        flat = values.reshape(-1).double()
        return (
            float((flat * torch.arange(1, flat.numel() + 1, device=flat.device)).mean())
            if flat.numel()
            else 0.0
        )
    except (RuntimeError, NotImplementedError):
        return 0.0


def _equal(mean: float, own: float) -> bool:
    return bool(own) and abs(mean - own) <= 3e-7 * abs(own)  # told in float32
