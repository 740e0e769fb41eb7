"""What this rank has of open windows, to the bit. The state that all ranks have in common holds a mean over them, which rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchbus.plugin import Context

from torchbus_accumulate.optimizers import Optimizers
from torchbus_accumulate.windows.sharded_gradients import is_part
from torchbus_accumulate.windows.sums import WindowSum


class OwnSums:
    """For a checkpoint in which each rank has a state of its own. It is loaded after the common one, by the rank that wrote it among as
    many ranks; to others it says nothing."""

    def __init__(self, session: Context, optimizers: Optimizers) -> None:
        self._session = session
        self._optimizers = optimizers

    @property
    def _who(self) -> list[int]:
        return [self._session.rank, self._session.world_size]

    def state_dict(self) -> dict[str, Any]:
        alone = self._session.world_size == 1
        return {"who": self._who, "sums": [] if alone else [_of(one) for one in self._optimizers.sums]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["who"] == self._who:
            for one, own in zip(self._optimizers.sums, state["sums"], strict=False):
                if own["calls"] and own["calls"] == one.calls:
                    _restore(one, own)


def _of(one: WindowSum) -> dict[str, Any]:
    """A part of a gradient that is divided is the same in the common state."""
    gradients = [None if gradient is None or is_part(gradient) else gradient.detach() for gradient in one.committed()]
    numbers = {"calls": one.calls, "weight": one.weight, "samples": one.samples, "mass": one.mass, "whole": one.whole, "counted": one.counted}
    return {**numbers, "gradients": gradients}


def _restore(one: WindowSum, own: Mapping[str, Any]) -> None:
    kept = [theirs if theirs is not None and is_part(theirs) else mine for theirs, mine in zip(one.committed(), own["gradients"], strict=True)]
    one.restore(own["calls"], own["weight"], own["samples"], own["mass"], own.get("whole", 0.0), kept)
    one.counted = own["counted"]
