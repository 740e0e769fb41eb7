"""Finds the dimension of samples in a loss's graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from torchbus_strategy import compat
from torchbus_strategy.graph import is_parameter, sizes_of
from torchbus_strategy.loss.of_parameters import is_many, may_be_of_parameters

Sizes = Sequence[int]
NODES_AT_MOST = 64
JOINED_WITHIN = 4
LINEAR = ("MeanBackward0", "MeanBackward1", "SumBackward0", "SumBackward1")
REDUCING = (
    *LINEAR,
    "AmaxBackward0",
    "AminBackward0",
    "KthvalueBackward0",
    "LinalgVectorNormBackward0",
    "LogsumexpBackward0",
    "MaxBackward0",
    "MaxBackward1",
    "MedianBackward0",
    "MedianBackward1",
    "MinBackward0",
    "MinBackward1",
    "NormBackward0",
    "NormBackward1",
    "ProdBackward0",
    "ProdBackward1",
    "StdBackward0",
    "VarBackward0",
)
ORDERING = (
    "CummaxBackward0",
    "CumsumBackward0",
    "LogcumsumexpBackward0",
    "LogSoftmaxBackward0",
    "SoftmaxBackward0",
    "SortBackward0",
    "TopkBackward0",
)
PICKING = (
    "GatherBackward0",
    "IndexSelectBackward0",
    "SliceBackward0",
    "SplitBackward0",
    "SplitWithSizesBackward0",
    "UnsafeSplitBackward0",
)
VIEWS = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0")
TIME_FIRST = ("CudnnRnnBackward0", "MiopenRnnBackward0", "MkldnnRnnLayerBackward0")
LAYERS = {"AddmmBackward0": 1, "ConvolutionBackward0": 0}
"""The position of the data among each layer's arguments."""
DATA_OF = {"AddmmBackward0": compat.MAT1, "MmBackward0": compat.SELF}


class SampleDims(NamedTuple):
    """Where a tensor holds its samples.

    ``dims`` are the dimensions that hold samples. If there are several, all but the first may hold
    something else: the graph does not show how a dimension that was split had been joined.
    ``related`` says that something below relates samples to each other: a statistic over them,
    their order, or a product of pairs.
    """

    dims: tuple[int, ...] = ()
    related: bool = False


DATA, NONE = SampleDims((0,)), SampleDims()


class Budget:
    """A limit on visited nodes. A tensor beyond it is treated as data.

    ``found`` caches each result by the node and the sizes of its tensor.
    """

    def __init__(self, is_first: bool = True) -> None:
        self.left = NODES_AT_MOST
        self.found: dict[tuple[Any, tuple[int, ...]], SampleDims] = {}
        self._is_first = is_first

    def of_other_side(self) -> Budget:
        """Return a budget for a second tower of layers, which the first one must not use up."""
        return Budget(False) if self._is_first else self


def samples_in(node: Any, sizes: Sizes, budget: Budget | None = None) -> SampleDims:
    """Return where the samples are in the tensor of these ``sizes`` that ``node`` has made."""
    budget = budget or Budget()
    made = compat.sizes_made(node)
    if made and tuple(sizes) not in made:  # a broadcast, or a node whose arguments have other sizes
        sizes = made[0]
    place = (node, tuple(sizes))
    if place not in budget.found:
        budget.left -= 1
        budget.found[place] = _samples_in(node, sizes, budget)
    return budget.found[place]


def _samples_in(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    name = type(node).__name__
    if name == "AccumulateGrad":
        return NONE if is_parameter(node.variable) else DATA
    if node is None or budget.left < 0:
        return DATA
    if name in TIME_FIRST:
        return SampleDims((1,))
    if name == "EmbeddingBackward0":
        looked_up = compat.saved(node, compat.INDICES)
        return DATA if looked_up is None else _in_memory(looked_up)
    found = MADE_BY.get(name, _alike)(node, sizes, budget)
    if any(dim >= len(sizes) for dim in found.dims) and sizes:  # a broadcast, or an unknown node
        return found._replace(dims=tuple([dim for dim in found.dims if dim < len(sizes)]))
    return found


def _in_memory(data: torch.Tensor) -> SampleDims:
    """Find the samples of data by its strides.

    Samples are stacked to a batch, so they are furthest apart in memory, even after a transpose.
    """
    strides = data.stride()
    return SampleDims((strides.index(max(strides)),)) if strides else NONE


def _alike(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    """Find the samples after a node that leaves dimensions as they are, as elementwise functions
    and layers do, or after a loss that reduces several numbers to one.
    """
    # a loss's gradient still has an element for each sample
    is_gradient = type(node).__name__.endswith("BackwardBackward0")
    if getattr(node, compat.REDUCTION, 0) and not is_gradient:
        found = _first(node, sizes_of(node, sizes), budget)
        return SampleDims((), found.related or bool(found.dims))
    place = LAYERS.get(type(node).__name__)
    if place is not None:
        found = samples_in(node.next_functions[place][0], sizes, budget)
        return found._replace(dims=_without(found.dims, 1))  # its columns, or channels
    children = [child for child, _ in node.next_functions if child is not None]
    each = [_broadcast(child, sizes, budget) for child in children]
    found = _joined(each)
    if found == NONE and not may_be_of_parameters(node):
        sides: list[Any] = [getattr(node, side, None) for side in compat.FACTORS]
        data = [one for one in sides if is_many(one) and one.dim() == len(sizes)]
        return _in_memory(data[0]) if data else DATA
    is_related = (
        found.related or _is_of_pairs(each, children, budget) or _is_shifted(found, children)
    )
    return found._replace(related=is_related)


def _broadcast(child: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    """Return where an argument holds its samples after a broadcast to ``sizes``."""
    found = samples_in(child, sizes, budget)
    mine = next(iter(compat.sizes_made(child)), sizes)
    ahead = len(sizes) - len(mine)
    fits = all(one in (1, other) for one, other in zip(mine, sizes[ahead:], strict=False))
    return _moved(found, lambda dim: dim + ahead) if ahead > 0 and fits else found


def _is_of_pairs(each: Sequence[SampleDims], children: Sequence[Any], budget: Budget) -> bool:
    """Whether samples are combined in pairs by broadcasting, as in ``x[:, None] - x[None]``."""
    first = {one.dims[0] for one in each if one.dims}
    inserted = any(type(child).__name__ == "UnsqueezeBackward0" for child in children)
    return len(first) > 1 and inserted and budget.left >= 0


def _is_shifted(found: SampleDims, children: Sequence[Any]) -> bool:
    """Whether samples are combined with neighbours, as in ``x[1:] * x[:-1]``, not as two halves."""
    if len(children) != 2 or any(type(one).__name__ != "SliceBackward0" for one in children):
        return False
    one, other = children
    dim, *_ = compat.slice_of(one)
    if dim not in found.dims or one.next_functions != other.next_functions:
        return False
    ranges = [
        range(sizes_of(child)[dim])[compat.signed(start) : compat.signed(end)]
        for child in children
        for along, start, end in [compat.slice_of(child)]
        if along == dim
    ]
    return len(ranges) == 2 and ranges[0] != ranges[1] and bool({*ranges[0]} & {*ranges[1]})


def _joined(found: Iterable[SampleDims]) -> SampleDims:
    each = list(found)
    dims = dict.fromkeys(dim for one in each for dim in one.dims)
    return SampleDims(tuple(dims), any(one.related for one in each))


def _without(dims: tuple[int, ...], lost: int) -> tuple[int, ...]:
    return tuple([dim for dim in dims if dim != lost])


def _first(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    return samples_in(node.next_functions[0][0], sizes, budget)


def _moved(found: SampleDims, place: Callable[[int], int | None]) -> SampleDims:
    """Move each dimension to its new ``place``, or remove it if that is None."""
    places = [place(dim) for dim in found.dims]
    return found._replace(dims=tuple([one for one in places if one is not None]))


def dims_of(node: Any, count: int) -> set[int]:
    """Return the dimensions on which a node operates: all ``count`` if it names none."""
    given = getattr(node, compat.DIM, None)
    if given is None or given == ():
        return set(range(count))
    each = given if isinstance(given, tuple) else (given,)
    return {compat.signed(one) % max(count, 1) for one in each}


def _reduced(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    before = sizes_of(node)
    found, over = _first(node, before, budget), dims_of(node, len(before))
    keepdim = getattr(node, compat.KEEPDIM, False)
    left = _moved(
        found,
        lambda dim: (
            None if dim in over else dim if keepdim else dim - sum(one < dim for one in over)
        ),
    )
    if found.dims and found.dims[0] in over and not found.related:
        return SampleDims(related=True)  # only the first dimension is known to hold samples
    return left._replace(related=left.related or (bool(found.dims) and not left.dims))


def _ordered(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    result = compat.saved(node, compat.RESULT)
    sizes = sizes_of(node, sizes if result is None else result.shape)
    found, over = _first(node, sizes, budget), dims_of(node, len(sizes))
    return found._replace(related=found.related or (bool(found.dims) and found.dims[0] in over))


def _product(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    """Find the samples after a product of matrices.

    Two matrices that both hold samples are compared in pairs, or are summed over the samples.
    """
    (first, _), (second, _) = node.next_functions
    left_sizes, right_sizes = _operands(node, sizes)
    left = DATA if first is None else samples_in(first, left_sizes, budget)
    beyond = budget.of_other_side()
    right = NONE if second is None else samples_in(second, right_sizes, beyond)
    rows, columns = len(sizes) - 2, len(sizes) - 1
    if first is None and not _without(right.dims, rows):
        return DATA._replace(related=right.related)
    dims = (*_without(left.dims, columns), *_without(right.dims, rows))
    if first is None:
        dims = right.dims
    over_samples = columns in left.dims and (second is None or rows in right.dims)
    related = {rows, columns} <= set(dims) or over_samples
    related &= min(dims, default=rows) >= rows  # otherwise each sample has a separate product
    return SampleDims(tuple(dict.fromkeys(dims)), related or left.related or right.related)


def _operands(node: Any, sizes: Sizes) -> tuple[Sizes, Sizes]:
    """Return the shapes of two matrices. Autograd saves each only if the other needs a gradient."""
    first, second = compat.saved(node, compat.SELF), compat.saved(node, compat.MAT2)
    if first is not None:
        inner = first.shape[-1]
    elif second is not None:
        inner = second.shape[-2]
    else:
        return sizes, sizes
    return (*sizes[:-1], inner), (*sizes[:-2], inner, sizes[-1])


def _pairs(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    """Find the samples in the distances of each row of one matrix from each row of another."""
    rows, given = len(sizes) - 2, (compat.saved(node, compat.X1), compat.saved(node, compat.X2))
    first, second = [
        NONE if child is None or one is None else samples_in(child, tuple(one.shape), left)
        for (child, _), one, left in zip(
            node.next_functions[:2], given, (budget, budget.of_other_side()), strict=True
        )
    ]
    moved = [dim + 1 if dim == rows else dim for dim in second.dims]
    dims = tuple(dict.fromkeys((*first.dims, *moved)))
    related = {rows, rows + 1} <= set(dims) and min(dims) == rows
    return SampleDims(dims, related or first.related or second.related)


def _swapped(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    pair = (0, 1) if type(node).__name__ == "TBackward0" else compat.swapped(node)
    order = list(range(len(sizes)))
    if len(order) > 1:
        one, other = [compat.signed(dim) % len(order) for dim in pair]
        order[one], order[other] = order[other], order[one]
    return _in_order(node, sizes, order, budget)


def _permuted(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    order = [compat.signed(dim) % len(sizes) for dim in compat.order(node)]
    return _in_order(node, sizes, order, budget)


def _in_order(node: Any, sizes: Sizes, order: Sequence[int], budget: Budget) -> SampleDims:
    """Find the samples after a permutation: dimension ``i`` was dimension ``order[i]`` before."""
    if len(order) != len(sizes):  # a broadcast, or an unknown node, has changed their number
        return DATA
    before = [size for _, size in sorted(zip(order, sizes, strict=True))]
    return _moved(_first(node, before, budget), lambda dim: order.index(dim) if dim in order else 0)


def _inserted(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    new = compat.signed(compat.dim(node)) % max(len(sizes), 1)
    inside = [size for dim, size in enumerate(sizes) if dim != new]
    children = [child for child, _ in node.next_functions if child is not None]
    found = _joined(samples_in(child, inside, budget) for child in children)
    return _moved(found, partial(_beside, new))


def _beside(new: int, dim: int) -> int:
    """Return the place of dimension ``dim`` after a dimension was inserted at ``new``."""
    return dim + (dim >= new)


def _removed(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    """Find the samples after a select from a dimension, or a squeeze of dimensions of size 1."""
    before = sizes_of(node)
    if type(node).__name__ == "SelectBackward0":
        lost = dims_of(node, len(before))
    else:
        over = dims_of(node, len(before))
        lost = {dim for dim in over if before[dim] == 1}
    found = _first(node, before, budget)
    if found.dims and found.dims[0] in lost:  # it held one sample
        return found._replace(dims=NONE.dims)
    return _moved(
        found,
        lambda dim: None if dim in lost else dim - sum(one < dim for one in lost),
    )


def _unbound(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    lost = compat.signed(compat.dim(node)) % (len(sizes) + 1)
    before = [*sizes[:lost], 1, *sizes[lost:]]
    found = _first(node, before, budget)
    if found.dims and found.dims[0] == lost:
        return found._replace(dims=NONE.dims)
    return _moved(found, lambda dim: dim - (dim > lost))


def _viewed(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    """Find the samples after a view, which keeps the order of elements.

    So a dimension is recognised by the number of elements inside it.
    """
    joined = _joined_before(node, sizes)
    if joined is not None:
        made_by, before, rows = joined
        found = _reshaped(samples_in(made_by, before, budget), before, rows)
        return found._replace(dims=_without(found.dims, len(rows) - 1))  # a layer's columns
    before = sizes_of(node)
    return _reshaped(_first(node, before, budget), before, sizes)


def _reshaped(found: SampleDims, before: Sizes, sizes: Sizes) -> SampleDims:
    dims = [
        dim
        for old in found.dims
        if old < len(before)
        for dim in range(len(sizes))
        if (sizes[dim] > 1 and _overlap(before, old, sizes, dim))
        or (dim == old and tuple(before[: old + 1]) == tuple(sizes[: old + 1]))
    ]
    return found._replace(dims=tuple(dict.fromkeys(dims)))


def _joined_before(node: Any, sizes: Sizes) -> tuple[Any, Sizes, Sizes] | None:
    """Find the view that joined the dimensions which this view splits again.

    A linear layer joins all dimensions but the last in this way. Returns the node before the
    joining view (None for data), the shape there, and that shape as this view splits its rows.
    Returns None if there is no such view.
    """
    for _ in range(JOINED_WITHIN):
        layer, node = node, node.next_functions[_place_of_data(node)][0]
        if node is None:
            same = _is_split_data(layer, sizes)
            return (None, sizes, sizes) if same else None
        if type(node).__name__ not in (*VIEWS, *LAYERS) and not _is_matrix_of_a_layer(node):
            return None
        if type(node).__name__ in VIEWS:
            before, rows = sizes_of(node), math.prod(sizes[:-1])
            if len(sizes) < 3 or len(before) < 3 or not rows or math.prod(before) % rows:
                return None
            return node.next_functions[0][0], before, (*sizes[:-1], math.prod(before) // rows)
    return None


def _place_of_data(node: Any) -> int:
    return min(LAYERS.get(type(node).__name__, 0), len(node.next_functions) - 1)


def _is_matrix_of_a_layer(node: Any) -> bool:
    """Whether a node is the product of a linear layer without a bias."""
    if type(node).__name__ != "MmBackward0":
        return False
    weight = node.next_functions[1][0]  # None if it is frozen
    return weight is not None and may_be_of_parameters(weight)


def _is_split_data(layer: Any, sizes: Sizes) -> bool:
    """Whether the layer's input is a view that joins data of these sizes, except for the last one.

    The view may hold only some rows of the data.
    """
    joined = compat.saved(layer, DATA_OF.get(type(layer).__name__, ""))
    whole = None if joined is None else compat.viewed(joined)
    if whole is None or whole.dim() != len(sizes) or len(sizes) < 3:
        return False
    return tuple(whole.shape[1:-1]) == tuple(sizes[1:-1]) and sizes[0] <= whole.shape[0]


def _overlap(before: Sizes, old: int, after: Sizes, new: int) -> bool:
    """Whether dimensions of two shapes of the same elements have a range of strides in common."""
    inner, mine = math.prod(before[old + 1 :]), math.prod(before[old:])
    other_inner, other = math.prod(after[new + 1 :]), math.prod(after[new:])
    return max(inner, other_inner) < min(mine, other)


def _expanded(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    before = sizes_of(node)
    return _moved(_first(node, before, budget), lambda dim: dim + len(sizes) - len(before))


def _indexed(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    """Find the samples after indexing.

    A mask turns the dimensions that it covers into one. A tensor of numbers replaces one dimension
    by all of its dimensions.
    """
    indices = compat.saved(node, compat.INDICES)
    found = _first(node, sizes_of(node), budget)
    if indices is None:
        return found._replace(dims=DATA.dims if found.dims else found.dims)
    given = [(place, one) for place, one in enumerate(indices) if one is not None]
    if not given:
        return found
    start, covered, made = given[0][0], 0, 1
    for _, index in given:
        is_mask = index.dtype == torch.bool
        covered += index.dim() if is_mask else 1
        made = max(made, 1 if is_mask else index.dim())
    return _moved(
        found,
        lambda dim: (
            dim if dim < start else start if dim < start + covered else dim - covered + made
        ),
    )


def _picked(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    return _first(node, sizes_of(node, sizes), budget)


def _selected(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    found = _first(node, sizes_of(node), budget)
    return found._replace(dims=DATA.dims if found.dims else found.dims)


def _written(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    """Find the samples of a tensor after a write into it, as in ``outputs[:, t] = output``."""
    base, value = (*(child for child, _ in node.next_functions), None)[:2]  # relu_() has no value
    mine = next(iter(compat.sizes_made(value)), sizes)
    if type(value).__name__ in VIEWS and len(mine) == len(sizes):  # ``pad_packed_sequence``
        return SampleDims((1,))
    found = samples_in(value, mine, budget)
    if not found.dims and base is not None:
        return samples_in(base, sizes, budget)
    if len(mine) + 1 != len(sizes):
        return found
    selected = [dim for dim in range(len(sizes)) if (*sizes[:dim], *sizes[dim + 1 :]) == mine]
    each = [_moved(found, partial(_beside, new)) for new in selected]
    return _joined(each) if each else found


def _diagonal(node: Any, sizes: Sizes, budget: Budget) -> SampleDims:
    before = sizes_of(node)
    pair = [compat.signed(one) % len(before) for one in compat.diagonal(node)]
    return _moved(
        _first(node, before, budget),
        lambda dim: len(sizes) - 1 if dim in pair else dim - sum(one < dim for one in pair),
    )


Made = Callable[[Any, Sizes, Budget], SampleDims]
MADE_BY: dict[str, Made] = {
    **dict.fromkeys(REDUCING, _reduced),
    **dict.fromkeys(ORDERING, _ordered),
    **dict.fromkeys(VIEWS, _viewed),
    **dict.fromkeys(("StackBackward0", "UnsqueezeBackward0", "UnsqueezeBackward1"), _inserted),
    **dict.fromkeys(("SelectBackward0", "SqueezeBackward0", "SqueezeBackward1"), _removed),
    **dict.fromkeys(("TransposeBackward0", "TransposeBackward1", "TBackward0"), _swapped),
    **dict.fromkeys(("MmBackward0", "BmmBackward0"), _product),
    **dict.fromkeys(("ExpandBackward0", "RepeatBackward0"), _expanded),
    **dict.fromkeys(PICKING, _picked),
    "CdistBackward0": _pairs,
    "CopySlices": _written,
    "DiagonalBackward0": _diagonal,
    "IndexBackward0": _indexed,
    "MaskedSelectBackward0": _selected,
    "PermuteBackward0": _permuted,
    "UnbindBackward0": _unbound,
}
