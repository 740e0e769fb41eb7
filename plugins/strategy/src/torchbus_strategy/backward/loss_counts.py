"""Weights gradients by the number of samples or tokens that each rank's loss counts.

Gradients are weighted by these counts, and divided by the mean of the weights once it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from torchbus.plugin import BackwardCall, Context

from torchbus_strategy.backward.header import COUNTED, NUM_BASIC, SLOTS, DeviceHeader, Header
from torchbus_strategy.graph import is_parameter
from torchbus_strategy.loss.gradients import scale_all
from torchbus_strategy.loss.terms import Count, Number, Scales
from torchbus_strategy.loss.weights import LossWeights

READ_AT_ONCE = 3
"""The number of first backwards in which the host waits for a GPU's numbers, to learn whether they
change any gradient.
"""


class LossCounts:
    """Divides the gradients of one backward, and scales the loss that the loop will read.

    ``weight`` multiplies what each gradient counts. It is less than 1 if ranks compute a loss
    together.
    """

    def __init__(
        self,
        session: Context,
        name: str,
        loss_reduction: str,
        loss_weight: str,
        weight: float,
        is_trained: Callable[[Tensor], bool] = is_parameter,
    ) -> None:
        self._session = session
        self._weight = weight
        self._is_sum = loss_reduction == "sum"
        is_alone = session.world.data.parts == 1 and not session.world.divides_anew
        by_samples = is_alone or session.bus.hook.parameters_may_differ(session=session)
        self._losses = LossWeights(
            session,
            "samples" if by_samples or self._is_sum else loss_weight,
            sums=loss_reduction == "auto",
            is_trained=is_trained,
        )
        session.bus.register(self._losses, f"{name}.losses")
        self._backwards = 0

    @property
    def note(self) -> str:
        """What ``explain`` says about the counts."""
        return self._losses.note

    def of(self, call: BackwardCall, has_local: Callable[[], bool]) -> Count:
        """Return the weight of this rank's gradient in the mean.

        ``has_local`` says whether there are gradients that no rank has synchronised yet. These
        would be divided together with the gradients of this backward.
        """
        count = self._count(call, has_local)
        if self._weight != 1.0:
            count = count.copied() if self.is_usual(count) else count
            count.weight, count.norm = count.weight * self._weight, count.norm * self._weight
        return count

    def _count(self, call: BackwardCall, has_local: Callable[[], bool]) -> Count:
        """Return what the loop has set, or else what its loss counts, or else its samples."""
        if self._is_sum:
            if call.weight is None:
                return self._losses.of_sum(call.loss)
            return Count(float(self._session.world.data.parts) if call.weight else 0.0)
        if call.weight is not None:
            return self._losses.take(Count(call.weight))
        if call.count is not None:
            return self._losses.take(call.count)
        if has_local() or not call.sync:
            return self._losses.by_samples(call.loss)
        return self._losses.of(call.loss, self._backwards < READ_AT_ONCE)

    def is_usual(self, count: Count) -> bool:
        """Whether many earlier losses had this count."""
        return self._losses.is_usual(count)

    def is_settled(self, mean: Sequence[float]) -> bool:
        """Whether the ranks' metadata equals that of many backwards, and changes no gradient."""
        return self._losses.is_settled(mean[NUM_BASIC:SLOTS])

    def weigh_terms(self, count: Count) -> Count:
        """Give each term of the loss a separate weight, if the weights differ.

        All ranks call it in every synchronised backward.
        """
        return self._losses.weigh_terms(count)

    def scale_gradients(
        self, reported: Header, count: Count, parameters: Sequence[Tensor]
    ) -> Number:
        """Divide the gradients, once the ranks have exchanged their counts.

        Returns the factor of the averaged loss.
        """
        self._backwards += 1
        scales = self._scales(reported, count)
        if scales is None:
            return 1.0
        if count.left:
            count.scale = scales.gradient
        elif isinstance(scales.gradient, Tensor) or scales.gradient != 1.0:
            scale_all(
                [parameter.grad for parameter in parameters if parameter.grad is not None],
                scales.gradient,
            )
        return scales.loss

    def _scales(self, reported: Header, count: Count) -> Scales | None:
        if isinstance(reported, DeviceHeader) and self._backwards > READ_AT_ONCE:
            return self._losses.resolve_on_device(reported.counts_there(), windows=count.left)
        return self._losses.resolve(reported.counts(), windows=count.left)

    def look(self, mean: Sequence[float]) -> None:
        """Read the ranks' metadata of a backward that the host did not wait for."""
        if mean[COUNTED] > 0.0:
            self._losses.have_counted()


def scalar_loss(call: BackwardCall) -> Tensor | None:
    """Return the loss if ``backward`` was called on one float, a tensor of one element."""
    loss = call.loss
    is_number = loss is not None and loss.numel() == 1 and loss.is_floating_point()
    return loss if is_number else None
