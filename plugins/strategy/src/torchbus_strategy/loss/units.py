"""Units: whether all ranks' losses are divided by the same number, and what it counts."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torchbus.plugin import Context

from torchbus_strategy.batches import counts_of_all, rows_here
from torchbus_strategy.loss.messages import EITHER, MAY_BE_NONE, NEITHER, REPEATED
from torchbus_strategy.loss.terms import (
    ALL,
    ALL_SQUARED,
    CLAMPED,
    COUNTED,
    LOCAL,
    MAY_BE_CLAMPED,
    NORM,
    OVER_ONE,
    UNKNOWN,
    WEIGHT,
    Count,
    Divisors,
    Measured,
    Number,
    Scales,
    Term,
    one,
    same,
    spread,
)
from torchbus_strategy.user_code import divides_by_multiple

ALIKE_FOR = 3


class ConstantDivisors:
    """Classifies constants that losses are divided by, the same on all ranks.

    In its methods, ``divisor`` is the number, and ``sizes`` is the shape of what was summed.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._of_all: set[float] = set()
        self._of_each: set[float] = set()
        self._counts_elements = self._may_be_elements = False
        self._multiples: dict[int, bool] = {}
        self._alike = self._rows = 0
        self._before = 0.0

    def state_dict(self) -> dict[str, object]:
        return {
            "constants": sorted(self._of_all),
            "constants of each": sorted(self._of_each),
            "counts elements": self._counts_elements,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._of_all, self._of_each = (
            set(state["constants"]),
            set(state.get("constants of each", ())),
        )
        self._counts_elements = state.get("counts elements", False)

    def target(self, divisor: Number | None) -> float:
        """Return the mean weight that ranks must have.

        It is 1 for a loss that is normalised over ranks already. It is the number of parts if all
        ranks divide by a number of samples that one process knows.
        """
        return float(self._session.world.data.parts) if divisor in self._of_all else 1.0

    def note(self, divisor: Number | None) -> None:
        """Note that all ranks divide by ``divisor``, for which ``may_be_of_all`` holds on each."""
        if divisor is not None and not isinstance(divisor, Tensor):
            self._of_all.add(divisor)

    def may_be_of_all(
        self, divisor: Number | None, divisors: Divisors, sizes: tuple[int, ...]
    ) -> bool:
        """Whether ``divisor`` is a number of samples, or of their elements, that one process would
        use too, as far as this rank sees.
        """
        share, parts = self._session.share, self._session.world.data.parts
        if divisor is None or isinstance(divisor, Tensor) or not share.count:
            return False
        return divisor in self._of_all or (
            # all ranks have different rows, so it is not one rank's number
            share.count >= 2 * parts
            and divisor not in self._of_each
            and any(
                self._divides_by(count * elements, divisors, sizes)
                for count in counts_of_all(self._session)
                for elements in (1, *accumulate(sizes[1:], operator.mul))
            )
        )

    def look(
        self,
        divisor: Number | None,
        divisors: Divisors,
        sizes: tuple[int, ...],
        text: str = NEITHER,
    ) -> str:
        """Look at a backward in which all ranks divide by ``divisor``.

        Returns a warning, made of ``text``, if they always divide by it and it is not a number
        of samples.
        """
        share, parts = self._session.share, self._session.world.data.parts
        if divisor is None or isinstance(divisor, Tensor) or not share.count or divisor == 1.0:
            return ""
        if parts > 1 and same(divisor * parts, share.count):
            # in the last, smaller batch all ranks together may have this number of samples
            self._of_each.add(divisor)
        rows = rows_here(self._session)
        counts = (
            rows,
            *counts_of_all(self._session),
            *self._of_all,
            *accumulate(sizes, operator.mul),
        )
        # a loss may also be multiplied by constants
        known = any(
            not isinstance(number, Tensor) and same(number, count)
            for number in (divisor, *divisors)
            for count in counts
        ) or any(_may_be_counted(number, rows, sizes) for number in divisors)
        if divisor in self._of_all and self._may_be_elements and not self._counts_elements:
            return EITHER.format(divisor)
        if self._alike >= ALIKE_FOR:
            return ""
        stays = divisor == self._before and not known
        # it was this rank's number of samples only by chance: the number of samples has changed
        outlasts = stays and rows != self._rows and (self._is_whole or divisor not in self._of_each)
        self._alike = ALIKE_FOR if outlasts else self._alike + 1 if stays else 0
        self._before, self._rows = divisor, rows
        said = self._alike == ALIKE_FOR
        return text.format(divisor, rows, share.count, 1 / divisor) if said else ""

    def _is_multiple(self, factor: int) -> bool:
        if factor not in self._multiples:
            self._multiples[factor] = divides_by_multiple(factor)
        return self._multiples[factor]

    @property
    def _is_whole(self) -> bool:
        """Whether a plugin divides the script's batch."""
        return any(
            getattr(plugin, "divides_own_batch", False) for _, plugin in self._session.bus.plugins()
        )

    def _divides_by(self, count: int, divisors: Divisors, sizes: tuple[int, ...]) -> bool:
        """Whether a sum is divided by ``count``, and the script has not counted it on this rank.

        ``count`` may also be the number of elements that were summed on this rank. It is, if no
        plugin divides the script's batch, if what was summed has that many rows, or if an earlier
        loss was divided by its number of elements. Otherwise a warning asks the user. A multiple of
        this rank's samples was counted here if the loss is also divided by their number, or if the
        source says so: ``/ (2 * len(x))``.
        """
        numbers = [one for one in divisors if not isinstance(one, Tensor | Measured)]
        if any(_is_measured_count(one, sizes) for one in divisors):
            return False  # it is a mean already, and ``count`` a factor
        elements = [*accumulate(sizes, operator.mul)]
        self._counts_elements |= any(
            not same(one, count) and any(same(one, mine) for mine in elements[1:])
            for one in numbers
        )
        if not any(same(one, count) for one in numbers):
            return False
        rows = rows_here(self._session)
        if any(same(one, rows) for one in numbers) or (
            rows and not count % rows and self._is_multiple(count // rows)
        ):
            return False
        self._may_be_elements = count in elements
        if not self._is_whole and not isinstance(self._session.share.indices, range):
            return not self._may_be_elements
        return count not in elements[:1] and not (self._may_be_elements and self._counts_elements)


def _is_measured_count(number: Number, sizes: tuple[int, ...]) -> bool:
    """Whether ``number`` was counted in the batch, such as the targets that are not ignored."""
    return (
        isinstance(number, Measured)
        and number.is_integer()
        and 1.0 < float(number) <= math.prod(sizes)
    )


def _may_be_counted(number: Number, rows: int, sizes: tuple[int, ...]) -> bool:
    """Whether ``number`` may be the sum of a mask that selects equally from all samples."""
    if not isinstance(number, Measured) or not rows:
        return False
    return not number % rows and number <= math.prod(sizes)


class CommonDivisor:
    """Decides from common values in each backward whether all ranks divide by one number.

    A number of samples, or of their elements, does not count, though equal shares make it equal on
    all ranks. Nor does a number that each rank counts separately, such as the sum of a mask, if it
    is equal by chance: earlier numbers differed, or it has not changed so far. ``local`` says that
    the number may be such a count.

    ``is_found`` says that all ranks have divided by one number so far. ``has_counted_repeated``
    says that in the last backward ranks without samples repeated a batch, and that the script
    divided by a number which it reduces over ranks.
    """

    def __init__(self) -> None:
        self._always_alike = True
        self._is_no_count = False
        self._first: float | None = None
        self._varies = False
        self.has_counted_repeated = False

    def state_dict(self) -> list[object]:
        return [self._always_alike, self._is_no_count, self._first, self._varies]

    def load_state_dict(self, state: list[Any]) -> None:
        self._always_alike, self._is_no_count, self._first, self._varies = state

    @property
    def is_found(self) -> bool:
        return self._always_alike and self._is_no_count

    @property
    def is_sure(self) -> bool:
        """Whether the script reduces its number over ranks: it has changed on all of them."""
        return self.is_found and self._varies

    def expect(self, number: Number | None, samples: int, parts: int, local: bool = False) -> bool:
        """Return what ``judge`` would find if all ranks divided by ``number``.

        On a GPU the host does not wait to learn whether they do. A number that is on the GPU itself
        is judged by earlier numbers.
        """
        if number is None or isinstance(number, Tensor):
            return self.is_found
        is_count = local or _is_rows(float(number), samples, parts)
        return self._always_alike and (self._is_no_count or not is_count)

    def judge(
        self, alike: bool, number: Number | None, samples: int, parts: int, local: bool = False
    ) -> bool:
        """Whether all ranks divide by one number that counts.

        ``alike`` says whether all ranks divide by ``number`` now. ``samples`` is the number of
        samples of all ranks, 0 if unknown.
        """
        self.has_counted_repeated = False
        some_repeat = bool(samples) and samples < 2 * parts
        if not alike or number is None:
            self._always_alike &= some_repeat
            return False
        divisor = float(number)
        self._varies |= self._first is not None and not same(divisor, self._first)
        self._first = divisor if self._first is None else self._first
        is_count = _is_rows(divisor, samples, parts) or (local and not self._varies)
        if some_repeat:
            found = self._always_alike and (self._is_no_count or not is_count)
            self.has_counted_repeated = found and self._varies
            return found
        self._is_no_count |= not is_count
        return self.is_found


def _is_rows(number: float, samples: int, parts: int) -> bool:
    """Whether ``number`` is the number of samples of a rank, if shares are equal."""
    return bool(samples) and same(number, samples / _sharers(samples, parts))


def _sharers(samples: int, parts: int) -> int:
    """Return how many ranks have samples, each at least two if possible."""
    return min(parts, max(1, samples // 2))


SPREAD = 1e-5  # the least spread of squares that float32 shows


class Unit:
    """How much one sample counts, on which all ranks agree.

    ``value`` is that number. ``agreed`` says that some backward has counted by a graph. The unit
    remembers what the latest loss counted until the ranks have exchanged their numbers.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._constants = ConstantDivisors(session)
        self._common = CommonDivisor()
        self._divisor: Number | None = None
        self._divisors: Divisors = ()
        self._sizes: tuple[int, ...] = ()
        self.value, self.agreed = 1.0, False
        self._usual_count = 0

    def take(self, term: Term | None) -> None:
        """Remember what the latest loss counted."""
        term = term or UNKNOWN
        self._divisor, self._divisors, self._sizes = term.number, term.divisors, term.sizes

    def reset(self) -> None:
        """Forget the previous loss: the latest one counted nothing that could be compared."""
        self._divisor = None

    def agree(self, count: Count) -> None:
        """Find the unit at the first backward of windows. All ranks call it, once.

        Replicas that come and go can't be asked. They count in whole numbers, so the unit stays 1.
        """
        if self._session.world.divides_anew:
            return
        weight, total = (float(count.norm), float(count.total)) if count.isolated else (0.0, 0.0)
        reported = torch.tensor([weight, total, total * total], dtype=torch.float64)
        several = self._session.world.data.parts > 1
        mean, whole, squared = (self._session.reduce(reported) if several else reported).tolist()
        alike = whole > 0.0 and spread(whole, squared) <= SPREAD
        self.value = mean / self._target(alike) or 1.0

    def judge(self, mean: Sequence[float]) -> tuple[bool, list[str]]:
        """Whether all ranks divide by one number, and warnings about it."""
        self._usual_count = self._usual_count or self._session.share.count
        same_everywhere = mean[ALL] > 0.0 and spread(mean[ALL], mean[ALL_SQUARED]) <= SPREAD
        if mean[CLAMPED] and same_everywhere and not self._common.is_sure:
            return False, []
        if not mean[ALL]:  # no rank has divided, so nothing is known about other losses
            self._common.has_counted_repeated = False
            return False, []
        alike = self._common.judge(
            same_everywhere,
            self._divisor,
            self._session.share.count,
            self._session.world.data.parts,
            mean[LOCAL] > 0.0,
        )
        odd = (
            self._constants.look(self._divisor, self._divisors, self._sizes)
            if same_everywhere
            else ""
        )
        repeated = REPEATED if self._common.has_counted_repeated else ""
        asks = mean[MAY_BE_CLAMPED] > 0.0 and not (alike and self._common.is_sure)
        return alike, [text for text in (odd, repeated, MAY_BE_NONE if asks else "") if text]

    def scales(self, mean: Sequence[float], alike: bool, windows: bool) -> Scales | None:
        """Return the factors for gradients and loss. None: change nothing."""
        if not (mean[COUNTED] or alike):
            return None
        target = self._target(alike)
        if not mean[COUNTED] and target == 1.0:
            return None
        self.agreed = True
        if mean[CLAMPED] and not alike:
            return self._scales_of_clamped(mean, windows)
        loss = (mean[ALL] if alike and not windows else mean[WEIGHT]) or _of_empty(mean)
        base = (mean[ALL] if alike else mean[NORM]) or 1.0
        if not windows and mean[NORM]:
            self.value *= base / target
        return Scales(one(target / base), one(target / loss))

    def _scales_of_clamped(self, mean: Sequence[float], windows: bool) -> Scales:
        """Return the factors if some ranks' sums are in full and count nothing.

        If this holds on all ranks, one process divides by one as well.
        """
        share, parts = self._session.share, self._session.world.data.parts
        base = mean[NORM] or 1.0 / ((share.count or parts) * self.value)
        if windows:
            return Scales(1.0 / base, 1.0 / mean[WEIGHT])
        if mean[NORM]:
            self.value *= base
        return Scales(1.0 / base, 1.0 / base)

    @property
    def settles_on_device(self) -> bool:
        """Whether all ranks scale after a backward although the host does not wait for numbers.

        They do once some backward has counted by a graph, and for batches of another size than the
        first one, because their counts differ too.
        """
        return self.agreed or self._session.share.count not in (0, self._usual_count)

    def scales_on_device(self, mean: Tensor, windows: bool) -> Scales | None:
        """Return the same factors on a GPU, without waiting for the numbers."""
        if not self.settles_on_device:
            return None
        alike = (mean[ALL] > 0.0) & (
            mean[ALL_SQUARED] - mean[ALL] ** 2 <= SPREAD * mean[ALL_SQUARED]
        )
        parts, share = self._session.world.data.parts, self._session.share
        counts, does_not = (
            self._common.expect(self._divisor, share.count, parts, local) for local in (False, True)
        )
        alike = alike & torch.where(mean[LOCAL] > 0.0, does_not, counts)
        alike = alike & ((mean[CLAMPED] == 0.0) | self._common.is_sure)
        target = torch.where(alike, self._target(not isinstance(self._divisor, Tensor)), 1.0)
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
        if not alike:
            return 1.0
        if self._constants.may_be_of_all(self._divisor, self._divisors, self._sizes):
            self._constants.note(self._divisor)
        return self._constants.target(self._divisor)


def _of_empty(mean: Sequence[float]) -> float:
    """Return the weight of a mean over nothing, which is NaN unless its divisor is clamped."""
    return 1.0 if mean[OVER_ONE] else math.nan
