"""Assembles a model's outputs from the rows of all ranks."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import TypeVar

import torch
from torch import Tensor
from torchbus.plugin import Unsupported

from torchbus_ddp.dp.exchange import averaged, joined
from torchbus_ddp.dp.rows import Leaf, Rows, has_rows, lengths_of, map_numbers, numbers_in
from torchbus_ddp.dp.team import RankGroup

T = TypeVar("T")
Shapes = Sequence[Sequence[int]]


class Kind(Enum):
    """How one of the outputs depends on the batch."""

    ROWS = "a row, or several, for each sample"
    NUMBER = "one number for all samples"
    FIXED = "the same size for any batch"


class RowOrder(IntEnum):
    """The order of an output's rows if each sample has several."""

    BY_SAMPLE = 0  # as repeat_interleave and flatten(0, 1) make them
    BY_VIEW = 1  # as torch.cat([first, second]) makes them
    UNKNOWN = 2


CLEARLY = 0.1
"""How much rows in the right order may differ, relative to the difference in the wrong order."""


class OutputLayout:
    """How the outputs of a model depend on the batch.

    It is learned from the ``outputs`` of a call that computed the whole batch of ``total`` samples.
    ``is_new`` is True until a call was divided. ``learned_before`` is the number of the backward
    after the call that was learned from. ``given`` has the tensors that were that call's batch.
    ``whole_because`` says why no call can be divided, or is empty.
    """

    def __init__(self, name: str, outputs: object, total: int, dim: int) -> None:
        self._name = name
        self._dim = dim
        self._total = total
        self._whole = [lengths_of(leaf) for leaf in numbers_in(outputs)]
        self._kinds = [_kind(leaf, total, dim) for leaf in numbers_in(outputs)]
        self._orders: list[RowOrder] = []
        self._sure = False
        self.is_new = True
        self.whole_because = ""
        self.learned_before = 0
        self.given: list[weakref.ref[Tensor]] = []

    @property
    def has_numbers(self) -> bool:
        """Whether some output is one number for all samples: a loss, most likely."""
        return Kind.NUMBER in self._kinds

    @property
    def has_several(self) -> bool:
        """Whether some output may have several rows for each sample."""
        both = zip(self._kinds, self._whole, strict=True)
        return any(kind is Kind.ROWS and one[self._dim] > self._total for kind, one in both)

    @property
    def unknown_orders(self) -> list[RowOrder]:
        return [RowOrder.UNKNOWN for _ in self._kinds]

    def orders(self, whole: object, mine: object, rows: Rows) -> list[RowOrder]:
        """Return the order of each output's rows, which this rank's rows show.

        ``whole`` and ``mine`` are the outputs for the whole batch and for this rank's rows.
        """
        both = list(zip(numbers_in(whole), numbers_in(mine), strict=False))
        if len(both) != len(self._kinds):
            return self.unknown_orders
        return [
            _order(one, other, rows, self._dim)
            if kind is Kind.ROWS and isinstance(one, Tensor) and isinstance(other, Tensor)
            else RowOrder.BY_SAMPLE
            for kind, (one, other) in zip(self._kinds, both, strict=True)
        ]

    def agree_on_orders(self, reported: Sequence[Sequence[int]]) -> None:
        """Set the orders that all ranks have reported."""
        each = [set(codes) for codes in zip(*reported, strict=True)]
        self._orders = [RowOrder(one.pop()) if len(one) == 1 else RowOrder.UNKNOWN for one in each]
        if RowOrder.UNKNOWN in self._orders:
            self.whole_because = "returns several rows for each sample, in an unknown order"

    def join(self, outputs: T, rows: Rows, team: RankGroup, reduction: str | None) -> T:
        """Return the outputs for the whole batch, on every rank, by two collectives or more.

        ``reduction`` is that of numbers, "mean" or "sum". Raises Unsupported, on all ranks, if the
        shapes do not fit together.
        """
        leaves = numbers_in(outputs)
        if [_dims(leaf) for leaf in leaves] != [len(shape) for shape in self._whole]:
            raise Unsupported(
                f"{self._name} returns {len(leaves)} tensors and numbers, but returned"
                f" {len(self._whole)}, or other ones, in its first call: dp can join only outputs"
                " of the same structure. Compute in the loop what depends on the batch"
            )
        sizes_of_ranks = team.gather([size for leaf in leaves for size in lengths_of(leaf)])
        shapes = [_split(sizes, leaves) for sizes in sizes_of_ranks]
        self._refuse_other_sizes(rows, shapes)
        self._find_fixed(rows, shapes)
        self.is_new = False
        remaining = iter(enumerate(zip(self._kinds, zip(*shapes, strict=True), strict=True)))

        def put_together(leaf: Leaf) -> Leaf:
            index, (kind, sizes) = next(remaining)
            if kind is Kind.ROWS and isinstance(leaf, Tensor):
                return self._joined(leaf, index, sizes, rows, team)
            return self._averaged(
                leaf, index, sizes, rows, team, reduction if kind is Kind.NUMBER else "mean"
            )

        return map_numbers(outputs, put_together)

    def _refuse_other_sizes(self, rows: Rows, shapes: Sequence[Shapes]) -> None:
        """Refuse outputs that seemed to have the same size for any batch, but do not.

        They have the samples in another dimension.
        """
        for index, kind in enumerate(
            self._kinds if self.is_new and rows.total == self._total else []
        ):
            sizes = [shape[index] for shape in shapes]
            if kind is not Kind.ROWS and any(
                list(size) != list(self._whole[index]) for size in sizes
            ):
                self._refuse(index, sizes, rows)

    def _find_fixed(self, rows: Rows, shapes: Sequence[Shapes]) -> None:
        """Find the outputs that do not depend on the number of samples, once it has changed."""
        if not self._sure and any(
            Rows(rows.samples, rank).computed != self._total for rank in range(len(rows.samples))
        ):
            for index, whole in enumerate(self._whole):
                if self._kinds[index] is Kind.ROWS and all(
                    list(shape[index]) == list(whole) for shape in shapes
                ):
                    self._kinds[index] = Kind.FIXED
            self._sure = True

    def _joined(
        self, leaf: Tensor, index: int, shapes: Shapes, rows: Rows, team: RankGroup
    ) -> Tensor:
        """Join the rows. A sample has several if forward has flattened dimensions together."""
        each = leaf.shape[self._dim] // rows.computed
        expected = [list(leaf.shape) for _ in shapes]
        for rank, shape in enumerate(expected):
            shape[self._dim] = Rows(rows.samples, rank, each).computed
        if [list(shape) for shape in shapes] != expected:
            self._refuse(index, shapes, rows)
        if self._orders and self._orders[index] is RowOrder.BY_VIEW:
            views = leaf.unflatten(self._dim, (each, rows.computed))
            return joined(views, rows, self._dim + 1, team).flatten(self._dim, self._dim + 1)
        return joined(leaf, Rows(rows.samples, rows.rank, each), self._dim, team)

    def _averaged(
        self,
        leaf: Leaf,
        index: int,
        shapes: Shapes,
        rows: Rows,
        team: RankGroup,
        reduction: str | None,
    ) -> Leaf:
        if any(list(shape) != list(shapes[0]) for shape in shapes):
            self._refuse(index, shapes, rows)
        weight = rows.weight if reduction == "mean" else float(rows.local > 0)
        if isinstance(leaf, float):
            return averaged(torch.tensor(leaf, dtype=torch.float64), weight, team).item()
        if leaf.is_floating_point() or leaf.is_complex():
            return averaged(leaf, weight, team)
        return self._same(leaf, index, team)

    def _same(self, leaf: Tensor, index: int, team: RankGroup) -> Tensor:
        """Return integers as they are. They must not depend on the batch."""
        if any(not other.equal(leaf) for other in team.all_gather(leaf)):
            raise Unsupported(
                f"output {index} of {self._name}, {leaf.dtype} of shape {tuple(leaf.shape)},"
                " differs between the ranks, which have different samples: dp can't combine it."
                " Count in the loop, from outputs that have a row for each sample"
            )
        return leaf

    def _refuse(self, index: int, shapes: Shapes, rows: Rows) -> None:
        raise Unsupported(
            f"output {index} of {self._name} has the shapes"
            f" {', '.join(str(tuple(shape)) for shape in shapes)} on the ranks, which have"
            f" {', '.join(map(str, rows.samples))} samples in dim {self._dim}: dp can't"
            f" concatenate them. Return tensors with the batch in dim {self._dim} and other"
            " dimensions that do not depend on it, pass batch_dim=, or use strategy='ddp'"
        )


def _kind(leaf: Leaf, total: int, dim: int) -> Kind:
    if isinstance(leaf, float) or (leaf.dim() == 0 and leaf.is_floating_point()):
        return Kind.NUMBER
    return (
        Kind.ROWS
        if has_rows(leaf, dim) and leaf.shape[dim] and leaf.shape[dim] % total == 0
        else Kind.FIXED
    )


def _order(whole: Tensor, mine: Tensor, rows: Rows, dim: int) -> RowOrder:
    """Compare this rank's rows with the same ones of the whole batch, in both orders."""
    if whole.shape == mine.shape or whole.shape[dim] == rows.total:
        return RowOrder.BY_SAMPLE
    each = whole.shape[dim] // rows.total
    whole, mine = whole.movedim(dim, 0).double(), mine.movedim(dim, 0).double()
    by_sample = rows.take(whole.unflatten(0, (rows.total, each)), 0).flatten(0, 1)
    by_view = rows.take(whole.unflatten(0, (each, rows.total)), 1).flatten(0, 1)
    if by_sample.shape != mine.shape:
        return RowOrder.BY_SAMPLE  # ``join`` refuses it
    far = [float((one - mine).abs().max()) for one in (by_sample, by_view)]
    if far[0] <= CLEARLY * far[1]:
        return RowOrder.BY_SAMPLE
    return RowOrder.BY_VIEW if far[1] <= CLEARLY * far[0] else RowOrder.UNKNOWN


def _dims(leaf: Leaf) -> int:
    return leaf.dim() if isinstance(leaf, Tensor) else 0


def _split(numbers: Sequence[int], leaves: Sequence[Leaf]) -> list[Sequence[int]]:
    """Return a rank's shapes, from one list of its sizes."""
    remaining = iter(numbers)
    return [[next(remaining) for _ in range(_dims(leaf))] for leaf in leaves]
