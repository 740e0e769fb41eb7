"""Finds the parameters that a backward has reached on any rank.

The engine sends zeros for the other parameters, so that all ranks send the same tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torch import Tensor
from torch.nn import Module
from torchbus.plugin import RanksDiverged

from torchbus_sharded._compat import (
    Pair,
    call_when_accumulated,
    original_class,
    pairs_in,
    unsharded,
)
from torchbus_sharded.agreement import REMEDY, Agreement
from torchbus_sharded.meta import forward_to
from torchbus_strategy.compat import tensor_hooks

REACHED, COUNTED = 1, 2
"""How a backward has reached a parameter. The ranks use the maximum of their flags."""


class UsedParameters:
    """Flags that the ranks exchange about a backward.

    One flag says that this rank's backward counts. Two flags for each model say that the backward
    reached it, or did not. One flag for each parameter says how it was reached.
    """

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._counts = agreement.make_room(1)
        self._places: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()

    def add(self, model: Module) -> None:
        """Add a sharded model. All ranks call it with the same models."""
        self._places[model] = self._agreement.make_room(2 + len(pairs_in(model)))

    def begin(self) -> None:
        """Reset before a backward."""
        for model in self._places:
            for pair in pairs_in(model):
                _watch(pair)
                pair.torchbus_reached = False
                pair.torchbus_had_none = pair.sharded_param.grad is None

    def flags(self, counts: bool) -> bytearray:
        """Set this rank's flags after the backward.

        ``counts`` is False if this rank has only repeated earlier samples, or if none of its
        targets count.
        """
        flags = bytearray(self._agreement.room)
        flags[self._counts] = counts
        for model, place in self._places.items():
            reached = bytes(pair.torchbus_reached for pair in pairs_in(model))
            flags[place] = any(reached)
            flags[place + 1] = not any(reached)
            flags[place + 2 : place + 2 + len(reached)] = bytes(
                one and (COUNTED if counts else REACHED) for one in reached
            )
        return flags

    def clear_unreached(self, reported: bytes) -> None:
        """Set a gradient to None if no rank has one that counts.

        ``reported`` is the maximum of all ranks' flags. Raises RanksDiverged, on all ranks, if only
        some of them have reached a model.
        """
        least = COUNTED if reported[self._counts] else REACHED
        for model, place in self._places.items():
            if reported[place] and reported[place + 1]:
                self._refuse(model)
            for pair, reached in zip(pairs_in(model), reported[place + 2 :], strict=False):
                if reached < least and pair.torchbus_had_none:
                    pair.sharded_param.grad = None

    def _refuse(self, model: Module) -> None:
        reported = self._agreement.gather_objects(
            any(pair.torchbus_reached for pair in pairs_in(model))
        )
        ranks = ", ".join(str(rank) for rank, reached in enumerate(reported) if reached)
        raise RanksDiverged(
            f"backward reached {original_class(model).__name__} only on rank {ranks}, of"
            f" {len(reported)} ranks. {REMEDY}"
        )


def _watch(pair: Pair) -> None:
    """Record when the whole tensor gets a gradient. It exists after the first gather."""
    whole = unsharded(pair)
    if whole is None or not whole.requires_grad:
        return
    watched: object = getattr(pair, "torchbus_watched", None)
    if watched is not whole:
        call_when_accumulated(whole, _mark(pair))
        pair.torchbus_watched = whole
        pair.torchbus_calls_hooks = False
    if tensor_hooks(pair.sharded_param) and not pair.torchbus_calls_hooks:
        whole.register_hook(forward_to(pair.sharded_param))
        pair.torchbus_calls_hooks = True


def _mark(pair: Pair) -> Callable[[Tensor], None]:
    """Return a hook with a weak reference, because the garbage collector can't see tensor hooks."""
    reference = weakref.ref(pair)

    def mark(_: Tensor) -> None:
        alive = reference()
        if alive is not None:
            alive.torchbus_reached = True

    return mark
