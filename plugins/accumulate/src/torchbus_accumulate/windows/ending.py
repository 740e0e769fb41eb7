"""The last batch of a window: which sums its backwards divide, and by what."""

from __future__ import annotations

from torch import Tensor
from torchbus.plugin import BackwardCall, Context, Unsupported

from torchbus_accumulate.messages import CUT_OFF
from torchbus_accumulate.optimizers import Optimizers
from torchbus_accumulate.windows.reach import reached
from torchbus_accumulate.windows.sums import WindowSum
from torchbus_accumulate.windows.weights import Weights


class Ending:
    """Divides each sum once, also if several backwards add to it.

    If the last backward was silent (under ``s.no_sync()``), the ranks add up what they count at the
    step instead.
    """

    def __init__(self, session: Context, optimizers: Optimizers, weights: Weights) -> None:
        self._session = session
        self._optimizers = optimizers
        self._weights = weights
        self._sums: list[WindowSum] = []
        self._is_silent = False

    def begin(self, call: BackwardCall, last: bool) -> None:
        """Before a backward, after its sums have put back what they hold."""
        self._is_silent = last and not call.sync
        self._sums = self._held(call) if last else []
        call.sync &= last
        if call.sync:
            self._weights.end(call, self._sums)

    def _held(self, call: BackwardCall) -> list[WindowSum]:
        """Return the sums that hold earlier batches, and that this backward adds to."""
        adding = [one for one in self._optimizers.sums if one.calls and one.is_being_added_to]
        held = reached(call, adding)
        for one in held:
            if one.settled:
                one.unsettle()
        return held

    def settle(self, call: BackwardCall) -> None:
        """After the backward, even if it has failed."""
        if call.count is not None and call.count.left:
            scales = isinstance(call.count.scale, Tensor) or call.count.scale != 1.0
            for one in self._sums:
                if one.counted or call.count.counted or scales:
                    one.settle(call.count.scale)

    def finish(self, one: WindowSum, is_flush: bool) -> None:
        """Called before a real step. A flush steps without the backward of a last batch."""
        one.finish(self._total(one, is_flush), self._weights.counted and not self._weights.is_sum)
        self._weights.begin_batch()

    def _total(self, one: WindowSum, is_flush: bool) -> float | None:
        """Return what the gradients weigh, or None if they have their weight already."""
        weights = self._weights
        if weights.is_sum:
            return None
        if is_flush or self._is_silent:
            return self._over_ranks(one, 0.0 if is_flush else 1.0)
        return one.weight + weights.factor if one.calls else None

    def _over_ranks(self, one: WindowSum, last: float) -> float:
        """The mean weight of what ranks hold, and of ``last`` x the last batch.

        Replicas that come and go can't be asked. By samples, that mean is what each rank has.
        """
        weights = self._weights
        if not self._session.world.divides_anew:
            return float(self._session.reduce(one.mass + weights.mass * last))
        if one.counted or (last and weights.counted):
            raise Unsupported(CUT_OFF)
        return one.weight + weights.factor * last
