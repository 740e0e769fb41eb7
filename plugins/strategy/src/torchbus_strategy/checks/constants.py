"""Reads the constants in losses' graphs, and finds those that differ between ranks."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torchbus.plugin import RanksDiverged

from torchbus_strategy import compat
from torchbus_strategy.checks import hyperparameters
from torchbus_strategy.checks.hyperparameters import Settings
from torchbus_strategy.loss.samples import samples_in
from torchbus_strategy.user_code import warn_of_gradients

if TYPE_CHECKING:
    from torchbus.plugin import Context


NODES_AT_MOST = 64
FACTORS_AT_MOST = 1024
FOLLOWED = (
    "AddBackward0",
    "SubBackward0",
    "RsubBackward1",
    "NegBackward0",
    "MulBackward0",
    "MulBackward1",
    "DivBackward0",
    "DivBackward1",
    "PowBackward0",
    "SumBackward0",
    "MeanBackward0",
)
WEIGHTED = {
    "NllLossBackward0": compat.WEIGHT,
    "NllLoss2DBackward0": compat.WEIGHT,
    "BinaryCrossEntropyWithLogitsBackward0": compat.POS_WEIGHT,
}
"""The names under which nodes have saved the weights of classes."""
OF_BINARY = ("BinaryCrossEntropyWithLogitsBackward0", "BinaryCrossEntropyBackward0")
SUMS = ("SumBackward0", "NansumBackward0")
TIMES = ("MulBackward0", "DivBackward0", "NegBackward0")
OF_A_SUM, OF_MEANS = " of a sum", " of means"
"""The end of a kind, if the constant divides a sum, so that ranks weigh the loss by it; and if it
stands for numbers that multiply means over samples.
"""


def read(loss: Tensor) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the kinds of nodes that hold constants, from the root on, and the constants.

    Both are empty if the graph can't be read. No tensor on a GPU is read, and none that activation
    checkpointing would compute again.
    """
    found: list[tuple[str, float]] = []
    waiting, seen = [loss.grad_fn], 0
    try:
        while waiting and seen < NODES_AT_MOST:
            node, seen = waiting.pop(0), seen + 1
            if node is None:
                continue
            found += [(_kind(node), value) for value in _constants(node)]
            if type(node).__name__ in FOLLOWED:
                waiting += [child for child, _ in node.next_functions]
    except RuntimeError:  # the graph was used already: backward itself reports it
        return (), ()
    return tuple(name for name, _ in found), tuple(value for _, value in found)


def _kind(node: Node) -> str:
    name = type(node).__name__
    if name.startswith("Div") and _divides_a_sum(node):
        return name + OF_A_SUM
    sides = [compat.saved(node, side) for side in compat.FACTORS if name in TIMES]
    is_vector = any(isinstance(side, Tensor) and side.dim() == 1 for side in sides)
    return name + OF_MEANS if is_vector else name


def _divides_a_sum(node: Node) -> bool:
    for _ in range(NODES_AT_MOST):
        child = node.next_functions[0][0]
        if child is None or type(child).__name__ in SUMS:
            return child is not None
        if type(child).__name__ not in TIMES:
            return False
        node = child
    return False


def _constants(node: Node) -> list[float]:
    plain = [getattr(node, name, None) for name in compat.NUMBERS]
    numbers = [float(value) for value in plain if isinstance(value, int | float)]
    if type(node).__name__.startswith(("MulBackward", "DivBackward")):
        numbers += _factor(node)
    elif type(node).__name__ in WEIGHTED:
        weights = compat.saved(node, WEIGHTED[type(node).__name__])
        if weights is not None and weights.is_cpu and weights.numel() <= FACTORS_AT_MOST:
            numbers.append(_weighted_sum(weights.detach().flatten()))
    return numbers + _of_labels(node)


def _of_labels(node: Node) -> list[float]:
    """Return one number for the weights of both labels, if each element has its label's weight."""
    name = type(node).__name__
    child = node.next_functions[0][0] if name == "MulBackward0" else None
    if name in OF_BINARY:
        weights, targets = compat.saved(node, compat.WEIGHT), compat.saved(node, compat.TARGET)
    elif child is not None and type(child).__name__ in OF_BINARY:
        weights, targets = compat.saved(node, compat.OTHER), compat.saved(child, compat.TARGET)
    else:
        return []
    if weights is None or targets is None or not weights.is_cpu:
        return []
    if weights.shape != targets.shape:
        return []
    each = [weights[targets == label] for label in (1, 0)]
    alike = all(len(one) and one.min() == one.max() for one in each)
    return [_weighted_sum(torch.stack([one[0] for one in each]))] if alike else []


def _factor(node: Node) -> list[float]:
    """Return the other side of a product or quotient, if autograd keeps it only as a number."""
    sides = [
        side for side in (compat.saved(node, name) for name in compat.FACTORS) if side is not None
    ]
    if len(sides) != 1:
        return []
    if isinstance(sides[0], int | float):
        return [float(sides[0])]
    side = sides[0]
    if type(side) is not Tensor or side.device.type != "cpu" or side.is_complex():
        return []
    if side.dim() == 0:
        return [float(side)]
    return [_weighted_sum(side)] if side.dim() == 1 and _multiplies_statistics(node, side) else []


def _multiplies_statistics(node: Node, side: Tensor) -> bool:
    """Whether a product multiplies means over samples, and not a number for each sample.

    The balance loss of a mixture of experts multiplies means by shares in this way.
    """
    if side.requires_grad or side.numel() > FACTORS_AT_MOST:
        return False
    child = next((one for one, _ in node.next_functions if one is not None), None)
    found = samples_in(child, side.shape)
    return found.related and not found.dims


def _weighted_sum(side: Tensor) -> float:
    values = side.double()
    return float(values @ torch.arange(1.0, len(values) + 1, dtype=values.dtype))


LOOKS = 10
MODULUS = 251  # small enough that float32 distinguishes the means of its squares
EVERY = 100
COUNTS_STAY = 4  # as a number of looks
FIXED = (
    "the ranks do not train with the same loss: {}, again and again. It is a constant of the loss"
    " or of one of its terms (a factor, a divisor, label smoothing). Take rank 0's:"
    " value = s.all_gather_object(value)[0]; a number that belongs to this rank's samples, as"
    " a reward does, must be a tensor: torch.tensor([value]).{}"
)
MOVES = (
    "a factor of the loss is not the same on all ranks: {}. Compute it from the samples of all"
    " ranks: a mean of a mask is s.reduce(mask.sum(), 'sum') / s.reduce(mask.numel(), 'sum')"
)

BALANCES = (
    "the loss multiplies means over this rank's samples by other numbers that come from these"
    " samples, as the balance loss of a mixture of experts does: each rank balances only its own"
    " share of the batch. Use strategy='dp', which computes the loss for the whole batch, or"
    " average the numbers by s.reduce(numbers)"
)


class BackwardReport(NamedTuple):
    """What one rank reports of one backward.

    ``kinds`` are the kinds of nodes that ``values`` come from.
    """

    weight: float
    kinds: tuple[str, ...]
    values: tuple[float, ...]
    settings: Settings


class Constants:
    """Compares the constants of losses over ranks.

    ``optimizers`` returns the hyperparameters of the optimizers that all ranks know.
    """

    def __init__(self, session: Context, optimizers: Callable[[], Settings]) -> None:
        compat.check()
        self._session = session
        self._optimizers = optimizers
        self._looks: dict[int, BackwardReport] = {}
        self._unlike: dict[tuple[str, ...], tuple[list[tuple[float, ...]], list[int]]] = {}
        self._warned = False

    def number(self, loss: Tensor | None, weight: float, progress: int) -> int:
        """Return what to send in this backward: from 0 to 250, and 0 in most.

        ``progress`` is equal on all ranks in the same backward. ``loss`` has one element.
        """
        backwards = self._session.job.backwards if self._session.job else 0
        if backwards >= LOOKS and backwards % EVERY:
            return 0
        kinds, values = read(loss) if loss is not None else ((), ())
        look = BackwardReport(weight, kinds, values, self._optimizers())
        self._looks = {**dict(list(self._looks.items())[-1:]), progress % MODULUS: look}
        plain = (
            progress,
            kinds,
            [f"{value:.5g}" for value in values],
            hyperparameters.digest(look.settings),
        )
        return zlib.crc32(repr(plain).encode(errors="replace")) % MODULUS

    def judge(self, progress: int) -> None:
        """Compare the numbers, after what the ranks sent in a backward differed. All ranks call it.

        Raises RanksDiverged on all ranks, or warns.
        """
        reported = [
            BackwardReport(*look)
            for look in self._session.all_gather_object(tuple(self._looks[progress]))
        ]
        common = set.intersection(*[set(look.settings) for look in reported])
        hyperparameters.compare(
            [
                {name: look.settings[name] for name in look.settings if name in common}
                for look in reported
            ]
        )
        weights = [round(look.weight, 6) for look in reported]
        if len({look.kinds for look in reported}) == 1 and all(weights):
            self._judge_loss(reported[0].kinds, [look.values for look in reported], weights)

    def _judge_loss(
        self, kinds: tuple[str, ...], reported: list[tuple[float, ...]], weights: list[float]
    ) -> None:
        """Judge by two looks.

        The same numbers twice are a setting. Other numbers each time come from the data, or are
        random. Numbers that follow the sizes of uneven shares are right.
        """
        columns = [
            () if _follows(column, weights) else tuple(column)
            for column in zip(*reported, strict=True)
        ]
        before, stayed = self._unlike.get(kinds, ([()] * len(columns), [0] * len(columns)))
        stays = [
            count + 1 if column and old and _alike(column, old) else 0
            for column, old, count in zip(columns, before, stayed, strict=True)
        ]
        self._unlike[kinds] = columns, stays
        for kind, column, old, count in zip(kinds, suspicious(columns), before, stays, strict=True):
            if column and old:
                self._judge(kind, column, old, count, is_even=_equal(weights))

    def _judge(
        self,
        kind: str,
        column: tuple[float, ...],
        old: tuple[float, ...],
        stays: int,
        *,
        is_even: bool,
    ) -> None:
        """Judge one column of numbers.

        Whole numbers and their inverses are counts, which change with the batch. If they do not
        change, there may be only one batch.
        """
        shown = ", ".join(f"{value:.6g} on rank {rank}" for rank, value in enumerate(column))
        # 0 is a count, too: of a mask that leaves nothing
        counts = all(_is_count(value) or (not value and max(column) > 1.0) for value in column)
        if stays and not counts and is_even:
            raise RanksDiverged(FIXED.format(shown, hyperparameters.searches()))
        if stays >= COUNTS_STAY and (is_even or not counts):
            self._warn(FIXED.format(shown, hyperparameters.searches()))
        elif kind.endswith(OF_MEANS) and not _equal(old):
            self._warn(BALANCES)
        elif not (counts or _equal(old) or kind.endswith(OF_A_SUM)):
            self._warn(MOVES.format(shown))

    def _warn(self, text: str) -> None:
        if not self._warned and self._session.is_main:
            warn_of_gradients(text)
        self._warned = True


def equal_on_all_ranks(mine: float, mean: float, mean_of_squares: float) -> bool:
    """True if an integer was equal on all ranks.

    Then the means over ranks of the integer and of its square equal this rank's numbers.
    """
    return abs(mean - mine) < 0.01 and abs(mean_of_squares - mine * mine) < 0.3


def suspicious(columns: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Return the constants that differ between ranks, and () in the place of other constants.

    Each constant has a value for every rank. Two constants that add up to one on every rank may
    differ: they are weights of a mixture (mixup), which each rank draws for its samples.
    """
    differ = [() if not column or _equal(column) else column for column in columns]
    pairs = [
        (
            [a + b for a, b in zip(one, other, strict=True)]
            if one and other and one is not other
            else []
        )
        for one in differ
        for other in differ
    ]
    mixes = [bool(sums) and _alike(sums, [1.0] * len(sums)) for sums in pairs]
    size = len(differ)
    return [
        () if any(mixes[place * size : (place + 1) * size]) else column
        for place, column in enumerate(differ)
    ]


def _is_count(value: float) -> bool:
    inverse = 1 / value if value else math.inf
    return any(
        abs(number) > 0.99 and math.isclose(number, round(number), rel_tol=1e-6)
        for number in (value, inverse)
        if math.isfinite(number)
    )


def _follows(column: Sequence[float], weights: Sequence[float]) -> bool:
    """Whether numbers are in proportion to uneven weights of the ranks, or to their inverses."""
    found = [
        [value * weight for value, weight in zip(column, weights, strict=True)],
        [value / weight for value, weight in zip(column, weights, strict=True)],
    ]
    return not _equal(weights) and any(map(_equal, found))


def _equal(column: Sequence[float]) -> bool:
    return _alike(column, [column[0]] * len(column))


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(
        math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-30) or a != a
        for a, b in zip(one, other, strict=True)
    )


class Digest:
    """A checksum that is equal on ranks which have added equal tensors in the same order."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, tensor: Tensor) -> None:
        """Add the bytes of a tensor of any shape and dtype."""
        self._sum = crc32(byte_sum(tensor).to_bytes(8, "little"), self._sum)

    def take(self) -> int:
        """Return the checksum, below ``MODULUS``, and reset it."""
        checksum, self._sum = self._sum, 0
        return checksum % MODULUS


def byte_sum(tensor: Tensor) -> int:
    """Return the sum of a tensor's bytes, of any shape and dtype, in any order of the additions."""
    return int(tensor.detach().reshape(-1).view(torch.uint8).sum(dtype=torch.int64))
