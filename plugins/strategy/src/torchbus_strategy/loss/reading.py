"""Reads from a loss's autograd graph what it is a mean or a sum over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import Node

from torchbus_strategy import compat
from torchbus_strategy.graph import children_of, sizes_of
from torchbus_strategy.loss.of_parameters import (
    OF_ONE_NUMBER,
    is_of_parameters,
    is_penalty,
    may_be_of_parameters,
    reduces_a_parameter,
)
from torchbus_strategy.loss.samples import (
    LINEAR,
    NONE,
    ORDERING,
    REDUCING,
    dims_of,
    samples_in,
)
from torchbus_strategy.loss.stacked import (
    VectorElement,
    are_samples,
    as_divisor,
    place_of_select,
    places_in,
    places_of_dot,
)
from torchbus_strategy.loss.terms import (
    NONLINEAR,
    NORMALISED,
    STANDARDISED,
    UNKNOWN,
    Coefficient,
    Divisors,
    Measured,
    Number,
    Term,
)

PARTS = ("SliceBackward0", "IndexBackward0")
COMPARING_PRODUCTS = ("MulBackward0", "DotBackward0")


def compares_samples(node: Node, sizes: Sequence[int]) -> bool:
    """Whether a node is a nonlinear function over samples: their maximum, order or variance."""
    if type(node).__name__ in PARTS:
        node, sizes = node.next_functions[0][0] or node, sizes_of(node, sizes)
    name = type(node).__name__
    if name in LINEAR or name not in (*REDUCING, *ORDERING):
        return False
    return samples_in(node, sizes if name in REDUCING else sizes_of(node, sizes)).related


EACH = (
    "ClampBackward1",
    "MaximumBackward0",
    "MinimumBackward0",
    "MulBackward0",
    "NegBackward0",
)
EACH_DEPTH = 3


def has_normalised_weights(node: Node, sizes: Sequence[int]) -> bool:
    """Whether samples, or elements of them, are multiplied by numbers that add up to one, or are
    one on average, also within a ``torch.where``.

    Weights that are whole numbers are a mask or data, and equal weights change nothing: neither
    counts. A mask that was divided by its mean does.
    """
    if type(node).__name__ == "WhereBackward0":
        children = [child for child, _ in node.next_functions if child is not None]
        return any(has_normalised_weights(child, sizes) for child in children)
    weights = _weights_of(node, sizes)
    if weights is None or len(weights) == 1:  # one sample: they may be a teacher's probabilities
        return False
    total = float(weights.double().sum())
    if not any(math.isclose(total, one, rel_tol=1e-5) for one in (1.0, weights.numel())):
        return False
    values = weights.unique()
    are_whole = bool((values == values.round()).all())
    return len(values) > 1 and not are_whole and samples_in(node, weights.shape).dims[:1] == (0,)


def has_standardised_weights(node: Node, sizes: Sequence[int], depth: int = EACH_DEPTH) -> bool:
    """Whether samples are multiplied by numbers whose mean is 0 and whose deviation is 1, also
    within a maximum or minimum, as in PPO.
    """
    weights = _weights_of(node, sizes)
    if weights is not None and weights.dim() == 1:
        each = weights.double()
        deviations = (float(each.std()), float(each.std(correction=0)))
        is_one = any(math.isclose(one, 1.0, rel_tol=1e-5) for one in deviations)
        return is_one and abs(float(each.mean())) < 1e-5
    if not depth or type(node).__name__ not in EACH:
        return False
    children = [child for child, _ in node.next_functions if child is not None]
    return any(has_standardised_weights(child, sizes, depth - 1) for child in children)


def _weights_of(node: Node, sizes: Sequence[int]) -> Tensor | None:
    """Return the constant floats, of the shape ``sizes``, by which a node multiplies a tensor.

    None if there is only one, or if they are not on the CPU.
    """
    if type(node).__name__ not in COMPARING_PRODUCTS:
        return None
    sides = [compat.saved(node, name) for name in (*compat.FACTORS, compat.TENSOR)]
    given = [one for one in sides if isinstance(one, Tensor) and not one.requires_grad]
    weights = given[0].detach() if len(given) == 1 and given[0].is_cpu else None
    if weights is None or not weights.dim() or not weights.is_floating_point():
        return None
    fits = weights.numel() > 1 and (not sizes or tuple(sizes) == weights.shape)
    return weights if fits else None


ARITHMETIC = (
    "AddBackward0",
    "SubBackward0",
    "NegBackward0",
    "RsubBackward1",
    "AddBackward1",
    "SubBackward1",
)
SHAPES = (
    "ViewBackward0",
    "UnsafeViewBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "UnsqueezeBackward0",
    "CloneBackward0",
    "ToCopyBackward0",
)
LINEAR_STEPS = (*ARITHMETIC, *SHAPES, "MulBackward0", "DivBackward0")
READING_PRODUCTS = ("MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1")
SUMS = ("SumBackward0", "NansumBackward0")
OVER_DIMS = {
    "MeanBackward1": "MeanBackward0",
    "SumBackward1": "SumBackward0",
    "NansumBackward1": "NansumBackward0",
}
WITH_COUNT = ("NllLossBackward0", "NllLoss2DBackward0")
MEAN, SUM = 1, 2  # as torch numbers them
READING_DEPTH = 64


class Counted(NamedTuple):
    """What is known about a loss before its graph is read.

    Attributes:
        rows: The number of samples behind the loss on this rank, 0 if unknown.
        looks: Whether the graph is always searched for the dimension of the samples.
        alone: Whether the loss has only functions of parameters, so their constants may be data.
    """

    rows: int
    looks: bool
    alone: bool = False


def terms_of(loss: Tensor, rows: int = 0, looks: bool = True) -> list[Term]:
    """Return the terms of a loss of one element.

    Terms that hold only parameters (weight decay) are left out: they are the same on all ranks.
    ``rows`` and ``looks`` are those of ``Counted``.
    """
    node, counted = loss.grad_fn, Counted(rows, looks)
    if node is None:
        return []
    return _terms(node, counted, (), READING_DEPTH) or _terms(
        node, counted._replace(alone=True), (), READING_DEPTH
    )


def _terms(node: Node, rows: Counted, divisors: Divisors, depth: int) -> list[Term]:
    name = type(node).__name__
    if name in OVER_DIMS and _leaves_one(node):
        name = OVER_DIMS[name]
    if name in WITH_COUNT:
        return [_with_count(node, divisors)]
    if name == "MeanBackward0":
        return _mean(node, rows, divisors, depth)
    if hasattr(node, compat.REDUCTION):
        return _reduced(compat.reduction(node), node, rows, divisors)
    if name in SUMS:
        return _sum(node, rows, divisors, depth)
    if name in ARITHMETIC and depth:
        return _of_all(node, rows, divisors, depth)
    if name in SHAPES:
        return _terms(below(node), rows, divisors, depth - 1) if depth else [UNKNOWN]
    if name in READING_PRODUCTS and depth:
        return _reading_product(node, name, rows, divisors, depth)
    if name == "PowBackward0" and _is_squared_norm(node):
        sizes = sizes_of(below(node))
        if _is_penalty(below(below(node)), math.prod(sizes), rows):
            return []
        return [_summed(sizes, divisors, below(node))]
    if name in OF_PLACES and depth:
        places = OF_PLACES[name](node)
        if places is not None:
            return _stacked(places, rows, divisors, depth)
    if is_of_parameters(node) or _is_penalty(node, 1, rows):
        return []
    if name == "DotBackward0" and len(given := list(filter(None, children_of(node)))) == 1:
        return _dot(node, given[0], rows, divisors)
    if name in OF_ONE_NUMBER and not may_be_of_parameters(node):
        return [NONLINEAR]
    hidden = "hidden" if name.startswith("CompiledFunction") else "unknown"
    unknown = Term(hidden, over=divisors)
    return _compared(node) or [unknown]


def _is_penalty(node: Node, numel: int, counted: Counted, is_compared: bool = False) -> bool:
    rows = 1 if counted.alone else counted.rows
    return is_penalty(node, numel, rows, is_compared)


def _leaves_one(node: Node) -> bool:
    """Whether a reduction of some dimensions leaves a single number, as in ``losses.sum(0)``."""
    sizes = sizes_of(node)
    over = dims_of(node, len(sizes))
    return all(size == 1 for dim, size in enumerate(sizes) if dim not in over)


def _is_squared_norm(node: Node) -> bool:
    """Whether a power is a sum of squares, written as ``x.norm() ** 2``."""
    child = node.next_functions[0][0]
    return (
        compat.exponent(node) == 2
        and getattr(child, compat.ORD, None) == 2
        and not compat.operand(node).dim()
        and not is_of_parameters(node)
    )


OF_PLACES = {"DotBackward0": places_of_dot, "SelectBackward0": place_of_select}


def is_sum(terms: Sequence[Term]) -> bool:
    """Whether a loss is a plain sum over samples, of which parts may be multiplied by constants:
    ``(x - y).square().sum() - 0.5 * kl.sum()``.
    """
    if len(terms) == 1 and not terms[0].divisors:
        return terms[0].reduction == "sum"
    kinds = {
        "sum" if is_in_full(term) else term.reduction
        for term in terms
        if is_in_full(term) or not term.divisors
    }
    return kinds == {"sum"}


def is_in_full(term: Term) -> bool:
    """Whether a term is a sum that has no divisor, or is only multiplied by factors above 1."""
    if term.reduction == "sum":
        return True
    known = [one for one in term.divisors if isinstance(one, Coefficient) and 0.0 < one < 1.0]
    return bool(known) and len(known) == len(term.divisors)


def sums_samples(term: Term) -> bool:
    """Whether a term is a plain sum over samples, and not only of parameters, as far as the graph
    shows.
    """
    if not is_in_full(term) or term.node is None:
        return False
    child = term.node.next_functions[0][0]
    return child is None or bool(samples_in(child, term.sizes).dims)


def relates_samples(term: Term) -> bool:
    """Whether a term puts the samples that it is made of in relation to each other.

    A sum of means over samples (``x.mean(0).sum()``) does not.
    """
    node = term.node
    if node is None or term.place is not None or node.next_functions[0][0] is None:
        return False
    while type(node).__name__ in READING_PRODUCTS:  # a product with the weight of a task
        below_it = [child for child, _ in node.next_functions if child is not None]
        node = next((one for one in below_it if not is_of_parameters(one)), below_it[0])
    sizes = sizes_of(node)  # unknown if activation checkpointing has packed the tensor
    is_of_means = bool(term.sizes) and term.sizes != sizes
    if not sizes or is_of_means or not samples_in(below(node), sizes).related:
        return False
    places = places_in(below(node), sizes[0]) if len(sizes) == 1 else None
    return not places or not are_samples(places)


def below(node: Node) -> Node:
    """Return the node of the first argument, which must need a gradient."""
    child = node.next_functions[0][0]
    assert child is not None
    return child


def _with_count(node: Node, divisors: Divisors) -> Term:
    """Read the count of a cross entropy or NLL.

    The node has saved the number of targets that count, or the sum of their classes' weights.
    """
    if compat.reduction(node) != MEAN:
        return _summed(tuple(compat.target(node).shape), divisors, node)
    count = compat.total_weight(node)
    return Term("mean", count.item() if count.is_cpu else count, over=divisors, node=node)


def _reduced(reduction: int, node: Node, rows: Counted, divisors: Divisors) -> list[Term]:
    values = compat.saved(node, compat.SELF)
    sizes = () if values is None else tuple(values.shape)
    if compat.is_packed(node, compat.SELF):
        sizes = compat.sizes_given(node)
    if _is_penalty(_data_of(node), math.prod(sizes), rows, is_compared=True):
        return []
    if reduction == SUM:
        return [_summed(sizes, divisors, node)]
    if reduction != MEAN:
        return [UNKNOWN]
    length = _length(_data_of(node), sizes, rows)
    return [Term("mean", length, sizes=sizes, over=divisors, node=node)]


def _data_of(node: Node) -> Node:
    """Return the node of the argument of a loss that needs a gradient."""
    return next(child for child, _ in node.next_functions if child is not None)


def _mean(node: Node, rows: Counted, divisors: Divisors, depth: int) -> list[Term]:
    sizes = tuple(compat.sizes(node))
    length = [float(size) for size in sizes[:1] if size != 1]
    found = _made_of(node, sizes, rows, divisors, depth, length)
    if found is not None:
        return found
    return [Term("mean", _length(below(node), sizes, rows), sizes=sizes, over=divisors, node=node)]


def _sum(node: Node, rows: Counted, divisors: Divisors, depth: int) -> list[Term]:
    sizes = tuple(compat.sizes(node) if hasattr(node, compat.SIZES) else compat.operand(node).shape)
    divisors = (*divisors, *_divided_inside(below(node)))
    found = _made_of(node, sizes, rows, divisors, depth)
    if found is None and not any(isinstance(number, Tensor) for number in divisors):
        found = _of_statistics(below(node), sizes)
    return [_summed(sizes, divisors, node)] if found is None else found


def _dot(node: Node, child: Node, rows: Counted, divisors: Divisors) -> list[Term]:
    """Read the sum of a vector's products with constant weights."""
    sizes = next(tuple(one.shape) for one in compat.sides_of_dot(node) if one is not None)
    if _is_penalty(child, math.prod(sizes), rows):
        return []
    found = _in_two_steps(child, sizes, divisors, node) or _of_statistics(child, sizes)
    return found or _compared(node, sizes) or [_summed(sizes, divisors, node)]


def _divided_inside(node: Node) -> Divisors:
    """The numbers by which each element of a sum is divided: ``(losses / mask.sum()).sum()``."""
    found: list[Number] = []
    while type(node).__name__ == "DivBackward0":
        children = [child for child, _ in node.next_functions if child is not None]
        number = compat.other(node)
        if len(children) != 1 or number is None or number.dim() or number.is_complex():
            break
        found.append(_divisor(number))
        node = children[0]
    return tuple(found)


def _of_statistics(child: Node, sizes: tuple[int, ...]) -> list[Term] | None:
    """Return a nonlinear term if statistics over samples are summed, and None otherwise."""
    found = samples_in(child, sizes)
    return [NONLINEAR] if found.related and not found.dims else None


def _made_of(
    node: Node,
    sizes: tuple[int, ...],
    rows: Counted,
    divisors: Divisors,
    depth: int,
    length: Sequence[float] = (),
) -> list[Term] | None:
    """Return the terms that a sum, or a mean over ``length`` things, adds up.

    None if the sum or mean is a term itself.
    """
    child = below(node)
    if depth and not sizes:
        return _terms(child, rows, divisors, depth - 1)
    places = places_in(child, sizes[0]) if depth and len(sizes) == 1 else None
    if places is not None:
        found = _stacked(places, rows, (*divisors, *length), depth)
        is_known = {term.reduction for term in found} <= {"mean", "sum"}
        if is_known or rows.rows not in (0, len(places)) or not are_samples(places):
            return found
        if length:
            return [Term("mean", length[0], sizes=sizes, over=divisors, node=node)]
        return [_summed(sizes, divisors, node)]
    if depth and math.prod(sizes) == 1 and not samples_in(child, sizes).dims:
        return _terms(child, rows, divisors, depth - 1)
    if reduces_a_parameter(child) or _is_penalty(child, math.prod(sizes), rows):
        return []
    return _in_two_steps(child, sizes, divisors, node) or _compared(child, sizes) or None


def _in_two_steps(
    child: Node, sizes: tuple[int, ...], divisors: Divisors, node: Node
) -> list[Term] | None:
    """Return the term if it first reduces its samples, and then the numbers that remain.

    None otherwise.
    """
    before, found = sizes, NONE
    for _ in range(READING_DEPTH):
        if type(child).__name__ in ("MeanBackward1", "SumBackward1"):
            before = tuple(compat.sizes(child))
            found = samples_in(below(child), before)
            if not found.related or found.dims:
                break
            child = below(child)
            continue
        if type(child).__name__ not in LINEAR_STEPS:
            return None
        children = [one for one, _ in child.next_functions if one is not None]
        data = [one for one in children if not may_be_of_parameters(one)]
        divides = type(child).__name__ == "DivBackward0" and data[:1] != children[:1]
        if len(data) != 1 or divides:
            return None
        child = data[0]
    if found.related or not found.dims or samples_in(child, sizes_of(child)).dims:
        return None
    if type(child).__name__ == "SumBackward1":
        return [_summed(before, divisors, node)]
    return [Term("mean", float(before[found.dims[0]]), sizes=before, over=divisors, node=node)]


def _compared(node: Node, sizes: Sequence[int] = ()) -> list[Term]:
    """Return a term that names the relation, if what is reduced here relates samples."""
    if compares_samples(node, sizes):
        return [NONLINEAR]
    if has_standardised_weights(node, sizes):
        return [STANDARDISED]
    return [NORMALISED] if has_normalised_weights(node, sizes) else []


def _summed(sizes: tuple[int, ...], divisors: Divisors, node: Node) -> Term:
    return (
        Term("mean", math.prod(divisors), divisors, sizes, node=node)
        if divisors
        else Term("sum", sizes=sizes, node=node)
    )


def _length(made_by: Node, sizes: Sequence[int], counted: Counted) -> float:
    """Return how many things a mean over these elements counts.

    This is the size of the dimension in which the graph shows the samples, or else of dim 0.
    Walking the graph takes longer than all the rest. After the first losses it is walked only if
    some loss had its samples in another dimension, or if the sizes suggest one: another dimension
    has the batch's number of rows, and dim 0 does not. A mask that is new then may be missed.
    """
    if not sizes:
        return 1.0
    rows, looks, _ = counted
    is_plain = rows not in sizes[1:] or sizes[0] == rows
    if len(sizes) == 1 or not rows or (is_plain and not looks):
        return float(sizes[0])
    dims = samples_in(made_by, sizes).dims
    return float(sizes[dims[0]] if dims and dims[0] < len(sizes) else sizes[0])


def is_elsewhere(term: Term) -> bool:
    """Whether a mean counts a dimension other than the first."""
    is_mean = term.reduction == "mean" and not term.divisors and len(term.sizes) > 1
    return bool(is_mean and term.number != term.sizes[0])


def _stacked(
    places: list[VectorElement], rows: Counted, divisors: Divisors, depth: int
) -> list[Term]:
    return [
        term
        for one in places
        for term in _in_place(one, _terms(one.loss, rows, (*divisors, *one.over), depth - 1))
    ]


def _in_place(place: VectorElement, found: list[Term]) -> list[Term]:
    if place.weighed_by is None:
        return found
    return _weighed_by(place.weighed_by, place.place, found)


def _weighed_by(node: Node, place: int | None, found: list[Term]) -> list[Term]:
    """Let a term's product with parameters, from which its value can be read, stand for it."""
    if len(found) > 1 or any(term.number is None for term in found):
        return [UNKNOWN]
    return [replace(term, node=node, place=place) for term in found]


def _of_all(node: Node, rows: Counted, divisors: Divisors, depth: int) -> list[Term]:
    children = [child for child, _ in node.next_functions if child is not None]
    return [term for child in children for term in _terms(child, rows, divisors, depth - 1)]


def _reading_product(
    node: Node, name: str, rows: Counted, divisors: Divisors, depth: int
) -> list[Term]:
    """Read a number times a term, or a term over a number."""
    children = [child for child, _ in node.next_functions if child is not None]
    if len(children) == 2:
        return _product_of_two(node, name, children, rows, divisors, depth)
    number = (
        compat.other(node) if getattr(node, compat.SELF, None) is None else compat.operand(node)
    )
    if len(children) != 1 or number is None or (isinstance(number, Tensor) and number.numel() != 1):
        return [UNKNOWN]
    if isinstance(number, Tensor) and number.is_complex():
        return [UNKNOWN]
    if name.startswith("Div"):
        return _terms(children[0], rows, (*divisors, _divisor(number)), depth - 1)
    is_whole = isinstance(number, Tensor) and not number.is_floating_point()
    if isinstance(number, Tensor) and number.is_cpu:
        number = compat.number_in(number)
    if not isinstance(number, Tensor) and is_whole and abs(number) == 1:  # a float 1.0 may be 1 / n
        return _terms(children[0], rows, divisors, depth - 1)
    if not isinstance(number, Tensor) and not number:
        return []  # `+ 0 * output.sum()` is there only to reach parameters
    return _terms(children[0], rows, (*divisors, as_divisor(number)), depth - 1)


def _divisor(given: Number) -> Number:
    if not isinstance(given, Tensor):
        return abs(given)
    if not given.is_cpu:
        return given.abs()
    number: float = abs(compat.number_in(given))
    return number if compat.is_python_number(given) else Measured(number)


def _product_of_two(
    node: Node, name: str, children: list[Node], rows: Counted, divisors: Divisors, depth: int
) -> list[Term]:
    """Read a term times a number that is made of parameters, such as the weight of a task."""
    first, second = children
    if name.startswith("Mul") and is_of_parameters(first):
        first, second = second, first
    if not is_of_parameters(second):
        return [NONLINEAR]
    found = [] if is_of_parameters(first) else _terms(first, rows, divisors, depth - 1)
    return _weighed_by(node, None, found)
