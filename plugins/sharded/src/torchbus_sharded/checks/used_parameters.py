"""Which parameters a backward has reached, on any rank: the engine sends zeros for the others, lest ranks send different things."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import Module
from torchbus.plugin import RanksDiverged

from torchbus_sharded.checks.agreement import REMEDY, Agreement
from torchbus_sharded.engine.fsdp2 import original_class, pairs_in
from torchbus_sharded.engine.parameter_hooks import forward_to


class Reached:
    """Of each model the ranks tell each other: one flag if it was reached, one if it was not, and one for each parameter that was."""

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._places: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()

    def add(self, model: Module) -> None:
        """Once it is divided. All ranks call it alike."""
        self._places[model] = self._agreement.make_room(2 + len(pairs_in(model)))

    def begin(self) -> None:
        """Before a backward."""
        for model in self._places:
            for pair in pairs_in(model):
                _watch(pair)
                pair.torchbus_reached = False
                pair.torchbus_had_none = pair.sharded_param.grad is None

    def flags(self, counts: bool) -> bytes:
        """After the backward. ``counts``: the gradients of this rank are not of samples that it had before."""
        flags = bytearray(self._agreement.room)
        for model, place in self._places.items():
            reached = bytes(pair.torchbus_reached for pair in pairs_in(model))
            flags[place] = any(reached)
            flags[place + 1] = not any(reached)
            if counts:
                flags[place + 2 : place + 2 + len(reached)] = reached
        return bytes(flags)

    def settle(self, told: bytes) -> None:
        """The flags of all ranks. A gradient is None where no rank has made one that counts.

        Raises RanksDiverged, on all ranks, where some have reached a model and some not.
        """
        for model, place in self._places.items():
            if told[place] and told[place + 1]:
                self._refuse(model)
            for pair, reached in zip(pairs_in(model), told[place + 2 :], strict=False):
                if not reached and pair.torchbus_had_none:
                    pair.sharded_param.grad = None

    def _refuse(self, model: Module) -> None:
        told = self._agreement.told(any(pair.torchbus_reached for pair in pairs_in(model)))
        ranks = ", ".join(str(rank) for rank, reached in enumerate(told) if reached)
        raise RanksDiverged(f"backward reached {original_class(model).__name__} on rank {ranks} alone, of {len(told)} ranks. {REMEDY}")


def _watch(pair: Any) -> None:
    """The whole tensor is made when its unit is gathered first."""
    whole = getattr(pair, "_unsharded_param", None)
    if whole is not None and whole.requires_grad and getattr(pair, "torchbus_watched", None) is not whole:
        whole.register_post_accumulate_grad_hook(_mark(pair))
        pair.torchbus_watched = whole
        pair.torchbus_calls_hooks = False
    if whole is not None and whole.requires_grad and pair.sharded_param._backward_hooks and not pair.torchbus_calls_hooks:
        whole.register_hook(forward_to(pair.sharded_param))
        pair.torchbus_calls_hooks = True


def _mark(pair: Any) -> Callable[[Tensor], None]:
    def mark(_: Tensor) -> None:
        pair.torchbus_reached = True

    return mark
