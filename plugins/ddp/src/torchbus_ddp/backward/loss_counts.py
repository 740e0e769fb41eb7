"""Gradients that were weighted by what the ranks' losses count are divided by the mean of these weights, once it is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor
from torchbus.plugin import BackwardCall, Context, Count, LossWeights, Number, Scales, scale_all

from torchbus_ddp.backward.header import COUNTED, DeviceHeader, Header

if TYPE_CHECKING:
    from torchbus_ddp.strategy import DDP

READ_AT_ONCE = 3
"""For so many backwards a GPU's numbers are waited for: whether they matter at all is known then."""


class Counted:
    """Divides what one backward has made, and finds what the loop is to read as its loss."""

    def __init__(self, session: Context, strategy: DDP) -> None:
        self._session = session
        self._is_sum = strategy.loss_reduction == "sum"
        by_samples = session.bus.hook.parameters_may_differ(session=session) or session.world.data.parts == 1
        self._losses = LossWeights(session, "samples" if by_samples or self._is_sum else strategy.loss_weight)
        session.bus.register(self._losses, f"{strategy.name}.losses")
        self._backwards = 0

    @property
    def note(self) -> str:
        """What was found."""
        return self._losses.note

    def of(self, call: BackwardCall, has_local: bool) -> Count:
        """What the loop has said, else what its loss counts, else its samples. ``has_local``: there are gradients that no rank has synchronised
        yet, which would be divided with those of this backward."""
        share = self._session.share
        if self._is_sum:
            if call.weight is None:
                return self._losses.of_sum(call.loss)
            return Count(float(self._session.world.data.parts) if call.weight else 0.0)
        if call.weight is not None:
            return self._losses.take(Count(call.weight))
        if call.count is not None:
            return self._losses.take(call.count)
        if has_local or not call.sync:
            return self._losses.take(Count(share.weight))
        return self._losses.of(call.loss, self._backwards < READ_AT_ONCE)

    def meet(self, count: Count) -> Count:
        """In every synchronised backward: what each of the loss's terms weighs, where that is not the same."""
        return self._losses.meet(count)

    def settle(self, told: Header, count: Count, parameters: Sequence[Tensor]) -> Number:
        """After the ranks have told each other; returns what the averaged loss is to be multiplied by."""
        self._backwards += 1
        scales = self._scales(told, count)
        if scales is None:
            return 1.0
        if count.left:
            count.scale = scales.gradient
        elif isinstance(scales.gradient, Tensor) or scales.gradient != 1.0:
            scale_all([parameter.grad for parameter in parameters if parameter.grad is not None], scales.gradient)
        return scales.loss

    def _scales(self, told: Header, count: Count) -> Scales | None:
        if isinstance(told, DeviceHeader) and self._backwards > READ_AT_ONCE and not count.left:
            return self._losses.settle_on_device(told.counts_there())
        return self._losses.settle(told.counts(), windows=count.left)

    def look(self, mean: Sequence[float]) -> None:
        """At what the ranks have told in a backward that nobody has waited for."""
        self._losses.agreed |= mean[COUNTED] > 0.0
