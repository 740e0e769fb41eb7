"""Tensors that belong to the samples of one rank, though an optimizer steps them: a perturbation of its batch, a latent code for each sample."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor
from torchbus.plugin import Context, Share, Unsupported, warn

from torchbus_ddp.checks.replicas import weighted_sum

ALIKE = (
    "{}: a tensor of shape {}, which no module owns, has a row for each sample of the batch, and so is taken for this rank's own: it is not "
    "synchronised. If all ranks share it, call s.adopt(tensor) before its optimizer is made"
)
UNLIKE = (
    "{}: a tensor of shape {}, which no module owns and which is not the same on all ranks, gets rank 0's values and is averaged in backward. "
    "If it is a weight, call s.adopt(tensor) before its optimizer is made; if it belongs to this rank's samples, give it a row for each of them"
)


class View(NamedTuple):
    """What one rank says of a tensor. ``has_rows``: it has a row for each sample of this rank's batch, or the rank has no sample."""

    shape: tuple[int, ...]
    has_rows: bool
    total: float


class OwnTensors:
    """They keep each rank's values. Their gradient is that of the loss over all ranks, as in one process with the whole batch."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._tensors: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        self._warned: set[str] = set()
        self.note = ""

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, tensor: Tensor) -> bool:
        return self._tensors.get(id(tensor)) is tensor

    def tensors(self) -> list[Tensor]:
        """Those that are alive."""
        return list(self._tensors.values())

    def find(self, loose: Sequence[Tensor], what: str) -> list[Tensor]:
        """Those of an optimizer's tensors that no module owns which are this rank's own: once the loop has taken a batch of a divided
        loader, a tensor that has a row for each of its samples, on all ranks. All ranks call it alike."""
        share, parts = self._session.share, self._session.world.data.parts
        if not loose or not share.count or parts == 1:
            return []
        told = self._session.all_gather_object([_view(tensor, share, parts) for tensor in loose])
        if len({len(views) for views in told}) > 1:
            return []  # an error, once their values are sent
        found = [tensor for tensor, *views in zip(loose, *told, strict=True) if self._is_own(views, what)]
        if found and parts != self._session.world_size:
            raise Unsupported(
                f"{what}: a tensor of shape {tuple(found[0].shape)} belongs to the samples of a batch, of which under this strategy each rank of a "
                "node computes a part: use strategy='ddp'; if it is a weight, call s.adopt(tensor) before its optimizer is made"
            )
        self._tensors.update({id(tensor): tensor for tensor in found})
        return found

    def _is_own(self, views: Sequence[View], what: str) -> bool:
        own = all(view.has_rows for view in views)
        equal = len(set(views)) == 1
        if own:
            self.note = f"{what} steps tensors that have a row for each sample of this rank's batch: these are not synchronised"
        if own is equal and len({view.shape for view in views}) == 1:
            self._warn((ALIKE if own else UNLIKE).format(what, views[0].shape))
        return own

    def _warn(self, text: str) -> None:
        if self._session.is_main and text not in self._warned:
            self._warned.add(text)
            warn(text)

    @contextmanager
    def over_all_ranks(self) -> Iterator[None]:
        """What a backward inside adds to their gradients is divided by the number of ranks, as it is for what all ranks average."""
        alive = self.tensors()
        before = [tensor.grad for tensor in alive]
        for tensor in alive:
            tensor.grad = None
        try:
            yield
        finally:
            for tensor, kept in zip(alive, before, strict=True):
                made = None if tensor.grad is None else tensor.grad / self._session.world_size
                tensor.grad = kept if made is None else made if kept is None else kept + made


def _view(tensor: Tensor, share: Share, parts: int) -> View:
    rows = round(share.weight * share.count / parts)
    return View(tuple(tensor.shape), not rows or (tensor.dim() > 0 and len(tensor) == rows), weighted_sum(tensor.detach()))
