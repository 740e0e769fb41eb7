"""This rank's own part of open windows, exact to the bit.

The state that all ranks share holds a mean over them, which is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchbus.plugin import Context

from torchbus_accumulate.optimizers import Optimizers
from torchbus_accumulate.windows.sharded_gradients import is_part
from torchbus_accumulate.windows.sums import WindowSum


class OwnSums:
    """A state of each rank's own, which is loaded after the common one.

    Only the rank that wrote it uses it, and only if the number of ranks is the same.
    """

    def __init__(self, session: Context, optimizers: Optimizers) -> None:
        self._session = session
        self._optimizers = optimizers

    @property
    def _who(self) -> list[int]:
        return [self._session.rank, self._session.world_size]

    def state_dict(self) -> dict[str, object]:
        sums = self._optimizers.sums if self._session.world_size > 1 else ()
        return {"who": self._who, "sums": [_of(one) for one in sums]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["who"] == self._who:
            for one, own in zip(self._optimizers.sums, state["sums"], strict=False):
                if own["calls"] and own["calls"] == one.calls:
                    _restore(one, own)


def _of(one: WindowSum) -> dict[str, object]:
    """Return what is this rank's own. The common state has sharded gradients already."""
    gradients = [
        None if gradient is None or is_part(gradient) else gradient.detach()
        for gradient in one.committed()
    ]
    numbers = {
        "calls": one.calls,
        "weight": one.weight,
        "samples": one.samples,
        "mass": one.mass,
        "whole": one.whole,
        "counted": one.counted,
    }
    return {**numbers, "gradients": gradients}


def _restore(one: WindowSum, own: Mapping[str, Any]) -> None:
    kept = [
        theirs if theirs is not None and is_part(theirs) else mine
        for theirs, mine in zip(one.committed(), own["gradients"], strict=True)
    ]
    one.restore(
        own["calls"], own["weight"], own["samples"], own["mass"], own.get("whole", 0.0), kept
    )
    one.counted = own["counted"]
