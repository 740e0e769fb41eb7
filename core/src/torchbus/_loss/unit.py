"""How much one sample counts: the unit on which all ranks agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchbus._loss.count import (
    ALL,
    ALL_SQUARED,
    COUNTED,
    NORM,
    OVER_ONE,
    WEIGHT,
    Count,
    Scales,
    one,
    spread,
)
from torchbus._loss.divisors import CommonDivisor, ConstantDivisors
from torchbus._loss.graph.term import UNKNOWN, Divisors, Number, Term
from torchbus._loss.messages import REPEATED
from torchbus._session.context import Context

SPREAD = 1e-5  # of squares that are told in float32


class Unit:
    """How much one sample counts, on which all ranks agree.

    ``value``: that number. ``agreed``: some backward has counted by a graph. What the latest loss
    counted is kept until the ranks have exchanged their numbers.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._constants = ConstantDivisors(session)
        self._common = CommonDivisor()
        self._own: Number | None = None
        self._divisors: Divisors = ()
        self._sizes: tuple[int, ...] = ()
        self.value, self.agreed = 1.0, False
        self._usual_count = 0

    def take(self, term: Term | None) -> None:
        """Keep what the latest loss counted."""
        term = term or UNKNOWN
        self._own, self._divisors, self._sizes = term.number, term.divisors, term.sizes

    def forget_own(self) -> None:
        """Keep nothing: the latest loss counted nothing that could be compared."""
        self._own = None

    def agree(self, count: Count) -> None:
        """Find the unit at the first backward of windows. All ranks call it, once.

        Replicas that come and go can't be asked. They count in whole numbers: the unit stays 1.
        """
        if self._session.world.divides_anew:
            return
        weight, total = (float(count.weight), float(count.total)) if count.anew else (0.0, 0.0)
        told = torch.tensor([weight, total, total * total], dtype=torch.float64)
        several = self._session.world.data.parts > 1
        mean, whole, squared = (self._session.reduce(told) if several else told).tolist()
        alike = whole > 0.0 and spread(whole, squared) <= SPREAD
        self.value = mean / self._target(alike) or 1.0

    def judge(self, mean: Sequence[float]) -> tuple[bool, list[str]]:
        """Whether all ranks divide by one number, and warnings about it."""
        self._usual_count = self._usual_count or self._session.share.count
        same_everywhere = mean[ALL] > 0.0 and spread(mean[ALL], mean[ALL_SQUARED]) <= SPREAD
        alike = self._common.judge(
            same_everywhere, self._own, self._session.share.count, self._session.world.data.parts
        )
        odd = (
            self._constants.look(self._own, self._divisors, self._sizes) if same_everywhere else ""
        )
        repeated = REPEATED if self._common.has_counted_repeated else ""
        return alike, [text for text in (odd, repeated) if text]

    def scales(self, mean: Sequence[float], alike: bool, windows: bool) -> Scales | None:
        """Return the factors for gradients and loss. None: change nothing."""
        if not mean[COUNTED]:
            return None
        self.agreed = True
        target = self._target(alike)
        loss = (mean[ALL] if alike and not windows else mean[WEIGHT]) or _of_nothing(mean)
        base = (mean[ALL] if alike else mean[NORM]) or 1.0
        if not windows and mean[NORM]:
            self.value *= base / target
        return Scales(one(target / base), one(target / loss))

    @property
    def settles_on_device(self) -> bool:
        """Whether factors follow a backward for which the host does not wait, on all ranks.

        So it is once a backward has counted by a graph, and for batches of another size than the
        first one: they have counts of their own.
        """
        return self.agreed or self._session.share.count not in (0, self._usual_count)

    def scales_on_device(self, mean: Tensor, windows: bool) -> Scales | None:
        """Return the same factors on a GPU, without waiting for the numbers."""
        if not self.settles_on_device:
            return None
        alike = (mean[ALL] > 0.0) & (
            mean[ALL_SQUARED] - mean[ALL] ** 2 <= SPREAD * mean[ALL_SQUARED]
        )
        alike = alike & self._common.expect(
            self._own, self._session.share.count, self._session.world.data.parts
        )
        target = torch.where(alike, self._target(not isinstance(self._own, Tensor)), 1.0)
        loss = mean[WEIGHT] if windows else torch.where(alike, mean[ALL], mean[WEIGHT])
        base = torch.where(alike, mean[ALL], mean[NORM])
        return Scales(*(target / torch.where(value == 0.0, 1.0, value) for value in (base, loss)))

    def state_dict(self) -> dict[str, object]:
        found = {"unit": self.value, "agreed": self.agreed}
        return found | {"common": self._common.state_dict(), **self._constants.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value, self.agreed = state["unit"], state["agreed"]
        self._constants.load_state_dict(state)
        self._common.load_state_dict(state["common"])

    def _target(self, alike: bool) -> float:
        """Return the mean weight that ranks must have if all divide by the same number."""
        return self._constants.target(self._own, self._divisors, self._sizes) if alike else 1.0


def _of_nothing(mean: Sequence[float]) -> float:
    """A mean over nothing is NaN, unless its divisor is clamped."""
    return 1.0 if mean[OVER_ONE] else math.nan


def unless_clamped(term: Term, loss: Tensor) -> Number:
    """Return the term's count, or 0 if a clamp has made it 1.

    In ``sum / mask.sum().clamp(min=1)`` a mask may leave nothing. Then the loss is zero over one,
    and counts nothing.
    """
    number = term.number
    if isinstance(number, Tensor):
        if not term.divisors:
            return number
        return torch.where((number == 1) & (loss.detach() == 0), 0, number)
    assert number is not None
    return 0.0 if term.divisors and number == 1.0 and not loss.item() else number
