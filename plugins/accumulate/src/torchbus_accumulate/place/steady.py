"""A loop all of whose batches count the same."""

from __future__ import annotations

from torchbus.plugin import BackwardCall, Context

from torchbus_accumulate.optimizers import Optimizers
from torchbus_accumulate.windows.weights import Weights


class Steady:
    """Without a loader, without counts of the loop's own and with one optimizer, every backward is weighted as the first of
    a window was, until the session has another share of the data or other optimizers. Finding that out anew for each batch
    takes a few microseconds."""

    __slots__ = ("_factor", "_optimizers", "_session", "_share", "_size", "_sum", "_sums", "_weights")

    def __init__(self, session: Context, optimizers: Optimizers, weights: Weights, size: int) -> None:
        """After the first backward of a window of ``size`` batches was weighted."""
        self._session, self._share = session, session.share
        self._optimizers, self._sums, self._sum = optimizers, optimizers.sums, optimizers.sums[0]
        self._weights, self._factor, self._size = weights, weights.factor, size

    def weigh(self, call: BackwardCall) -> bool:
        """Whether this backward is like the first, and has its weight now."""
        if self._session.share is not self._share or self._optimizers.sums is not self._sums:
            return False
        one, weights = self._sum, self._weights
        last = one.calls + 1 >= self._size
        call.sync &= last
        weights.factor = self._factor
        if not weights.is_sum:
            weights.count(call, None)
        one.before_backward(None)
        if last:
            weights.end(call, self._sums if one.calls else ())
        return True
