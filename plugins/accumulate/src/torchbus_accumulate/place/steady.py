"""A fast path for loops in which all batches have the same weight."""

from __future__ import annotations

from torchbus.plugin import BackwardCall, Context

from torchbus_accumulate.averages import Optimizers
from torchbus_accumulate.windows.weights import Ending, Weights


class Steady:
    """Gives every backward the weight of the first one in its window.

    That is right for a loop with one optimizer, without a loader and without its own counts. The
    share of the data and the optimizers must stay the same. It saves a few microseconds per batch.
    """

    __slots__ = (
        "_ending",
        "_factor",
        "_optimizers",
        "_session",
        "_share",
        "_size",
        "_sum",
        "_sums",
        "_weights",
    )

    def __init__(
        self,
        session: Context,
        optimizers: Optimizers,
        weights: Weights,
        ending: Ending,
        size: int,
    ) -> None:
        """Create it after the first backward of a window of ``size`` batches has its weight."""
        self._session, self._share = session, session.share
        self._optimizers, self._sums, self._sum = optimizers, optimizers.sums, optimizers.sums[0]
        self._weights, self._factor, self._size = weights, weights.factor, size
        self._ending = ending

    def weigh(self, call: BackwardCall) -> bool:
        """Set the weight of a backward. Return False if it may differ from the first one's."""
        if self._session.share is not self._share or self._optimizers.sums is not self._sums:
            return False
        one, weights = self._sum, self._weights
        last = one.calls + 1 >= self._size
        weights.factor = self._factor
        if not weights.is_sum:
            weights.count(call, None)
        one.before_backward(None, is_other_batch=False)
        self._ending.begin(call, last)
        return True
