"""Which parameters a backward has reached, on any rank: the engine sends zeros for the others, lest ranks send different things."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torchbus.errors import RanksDiverged

from torchbus_sharded.agreement import REMEDY, Agreement
from torchbus_sharded.engine import original_class, pairs_in


class Reached:
    """From before a backward until after it: the ranks tell each other while the loss and the buffers are on their way."""

    def __init__(self, models: Iterable[Module]) -> None:
        self._models = [(original_class(model).__name__, pairs_in(model)) for model in models]
        self._pairs = [pair for _, pairs in self._models for pair in pairs]
        self._had_none = [pair.sharded_param.grad is None for pair in self._pairs]
        for pair in self._pairs:
            _watch(pair)
            pair.torchbus_reached = False

    def ask(self, agreement: Agreement, counts: bool) -> None:
        """Tell the other ranks. ``counts``: the gradients of this rank are not of samples that it had before."""
        mine = [any(pair.torchbus_reached for pair in pairs) for _, pairs in self._models]
        made = [counts and pair.torchbus_reached for pair in self._pairs]
        self._told = torch.tensor([*mine, *made], dtype=torch.int32)
        self._work = agreement.total(self._told)

    def settle(self) -> None:
        """After ``ask``. A gradient is None where no rank has made one that counts.

        Raises RanksDiverged, on all ranks, where some have reached a model and some not.
        """
        self._work.wait()
        told, ranks = self._told.tolist(), torch.distributed.get_world_size()
        for (name, _), count in zip(self._models, told, strict=False):
            if 0 < count < ranks:
                raise RanksDiverged(f"backward reached {name} on {count} of {ranks} ranks. {REMEDY}")
        for pair, count, had_none in zip(self._pairs, told[len(self._models) :], self._had_none, strict=True):
            if not count and had_none:
                pair.sharded_param.grad = None


def _watch(pair: Any) -> None:
    """The whole tensor is made when its unit is gathered first."""
    whole = getattr(pair, "_unsharded_param", None)
    if whole is not None and whole.requires_grad and getattr(pair, "torchbus_watched", None) is not whole:
        whole.register_post_accumulate_grad_hook(_mark(pair))
        pair.torchbus_watched = whole


def _mark(pair: Any) -> Callable[[Tensor], None]:
    def mark(_: Tensor) -> None:
        pair.torchbus_reached = True

    return mark
