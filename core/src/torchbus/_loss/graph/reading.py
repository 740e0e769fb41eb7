"""Reads from its graph what a loss is a mean of.

That is samples, targets that are not ignored, or elements behind a mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor
from torch.autograd.graph import Node

from torchbus._compat import saved
from torchbus._loss.graph.comparing import compares_samples, has_normalised_weights
from torchbus._loss.graph.of_parameters import (
    OF_ONE_NUMBER,
    is_of_parameters,
    may_be_of_parameters,
    reduces_a_parameter,
)
from torchbus._loss.graph.samples import samples_in, sizes_of
from torchbus._loss.graph.stacked import Place, place_of_select, places_in, places_of_dot
from torchbus._loss.graph.term import NONLINEAR, NORMALISED, UNKNOWN, Divisors, Number, Term

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
PRODUCTS = ("MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1")
SUMS = ("SumBackward0", "NansumBackward0")
WITH_COUNT = ("NllLossBackward0", "NllLoss2DBackward0")
MEAN, SUM = 1, 2  # as torch numbers them
DEPTH = 64


def terms_of(loss: Tensor, rows: int = 0) -> list[Term]:
    """Return the terms of a loss.

    Terms that hold only parameters (weight decay) are left out: they are the same on all ranks.
    ``rows``: the number of samples behind the loss on this rank, 0 if nobody has counted.
    """
    node = loss.grad_fn
    return [] if node is None else _terms(node, rows, (), DEPTH)


def _terms(node: Node, rows: int, divisors: Divisors, depth: int) -> list[Term]:
    name = type(node).__name__
    if name in WITH_COUNT:
        return [_with_count(node, divisors)]
    if name == "MeanBackward0":
        return _mean(node, rows, divisors, depth)
    if hasattr(node, saved.REDUCTION):
        return [_reduced(saved.reduction(node), node, rows, divisors)]
    if name in SUMS:
        return _sum(node, rows, divisors, depth)
    if name in ARITHMETIC and depth:
        return _of_all(node, rows, divisors, depth)
    if name in SHAPES:
        return _terms(below(node), rows, divisors, depth - 1) if depth else [UNKNOWN]
    if name in PRODUCTS and depth:
        return _product(node, name, rows, divisors, depth)
    if name in OF_PLACES and depth:
        places = OF_PLACES[name](node)
        if places is not None:
            return _stacked(places, rows, divisors, depth)
    if is_of_parameters(node):
        return []
    if name in OF_ONE_NUMBER and not may_be_of_parameters(node):
        return [NONLINEAR]
    unknown = Term("hidden") if name.startswith("CompiledFunction") else UNKNOWN
    return _compared(node) or [unknown]


OF_PLACES = {"DotBackward0": places_of_dot, "SelectBackward0": place_of_select}


def is_sum(terms: Sequence[Term]) -> bool:
    """Whether a loss is a plain sum over samples, of which parts may be multiplied by constants:
    ``(x - y).square().sum() - 0.5 * kl.sum()``.
    """
    kinds = {term.reduction for term in terms if not term.divisors}
    return kinds == {"sum"}


def relates_samples(term: Term) -> bool:
    """Whether a term puts the samples that it is made of in relation to each other.

    A sum of means over samples (``x.mean(0).sum()``) does not.
    """
    node = term.node
    if node is None or term.place is not None or node.next_functions[0][0] is None:
        return False
    is_of_means = bool(term.sizes) and term.sizes != sizes_of(node)
    return not is_of_means and samples_in(below(node), sizes_of(node)).related


def below(node: Node) -> Node:
    """Return the node of its first argument, which needs a gradient."""
    child = node.next_functions[0][0]
    assert child is not None
    return child


def _with_count(node: Node, divisors: Divisors) -> Term:
    """Read the count of a cross entropy or NLL.

    Their nodes keep the number of targets that count, or the sum of their classes' weights.
    """
    if saved.reduction(node) != MEAN:
        return _summed(tuple(saved.target(node).shape), divisors, node)
    count = saved.total_weight(node)
    return Term("mean", count.item() if count.is_cpu else count, over=divisors, node=node)


def _reduced(reduction: int, node: Node, rows: int, divisors: Divisors) -> Term:
    values = getattr(node, saved.SELF, None)
    sizes = () if values is None else tuple(values.shape)
    if reduction == SUM:
        return _summed(sizes, divisors, node)
    return (
        Term("mean", _length(node, sizes, rows), sizes=sizes, over=divisors, node=node)
        if reduction == MEAN
        else UNKNOWN
    )


def _mean(node: Node, rows: int, divisors: Divisors, depth: int) -> list[Term]:
    sizes = tuple(saved.sizes(node))
    found = _made_of(node, sizes, rows, (*divisors, *map(float, sizes[:1])), depth)
    if found is not None:
        return found
    return [Term("mean", _length(below(node), sizes, rows), sizes=sizes, over=divisors, node=node)]


def _sum(node: Node, rows: int, divisors: Divisors, depth: int) -> list[Term]:
    sizes = tuple(saved.sizes(node) if hasattr(node, saved.SIZES) else saved.own(node).shape)
    divisors = (*divisors, *_divided_inside(below(node)))
    found = _made_of(node, sizes, rows, divisors, depth)
    if found is None and not any(isinstance(number, Tensor) for number in divisors):
        found = _of_statistics(below(node), sizes)
    return [_summed(sizes, divisors, node)] if found is None else found


def _divided_inside(node: Node) -> Divisors:
    """The numbers by which each element of a sum is divided: ``(losses / mask.sum()).sum()``."""
    found: list[Number] = []
    while type(node).__name__ == "DivBackward0":
        children = [child for child, _ in node.next_functions if child is not None]
        number = saved.other(node)
        if len(children) != 1 or number is None or number.dim() or number.is_complex():
            break
        found.append(abs(saved.number_in(number)) if number.is_cpu else number.abs())
        node = children[0]
    return tuple(found)


def _of_statistics(child: Node, sizes: tuple[int, ...]) -> list[Term] | None:
    """The term, if no dimension of what is summed holds samples any more."""
    found = samples_in(child, sizes)
    return [NONLINEAR] if found.related and not found.dims else None


def _made_of(
    node: Node, sizes: tuple[int, ...], rows: int, divisors: Divisors, depth: int
) -> list[Term] | None:
    """The terms that a mean or a sum adds up. None if it is a term itself."""
    child = below(node)
    if depth and not sizes:
        return _terms(child, rows, divisors, depth - 1)
    places = places_in(child, sizes[0]) if depth and len(sizes) == 1 else None
    if places is not None:
        return _stacked(places, rows, divisors, depth)
    if reduces_a_parameter(child):
        return []
    return _in_two_steps(child, sizes, divisors, node) or _compared(child, sizes) or None


def _in_two_steps(
    child: Node, sizes: tuple[int, ...], divisors: Divisors, node: Node
) -> list[Term] | None:
    """The term, if its samples are reduced first, and then the numbers that are left of them."""
    for _ in range(DEPTH):
        children = [one for one, _ in child.next_functions if one is not None]
        if type(child).__name__ not in LINEAR_STEPS or len(children) != 1:
            break
        child = children[0]
    if type(child).__name__ not in ("MeanBackward1", "SumBackward1"):
        return None
    before = tuple(saved.sizes(child))
    found = samples_in(below(child), before)
    if found.related or samples_in(child, sizes).dims or len(found.dims) != 1:
        return None
    if type(child).__name__ == "SumBackward1":
        return [Term("sum", sizes=before, node=node)]
    (dim,) = found.dims
    return [Term("mean", float(before[dim]), sizes=before, over=divisors, node=node)]


def _compared(node: Node, sizes: Sequence[int] = ()) -> list[Term]:
    """The term, if what is reduced here has put samples in relation to each other."""
    if compares_samples(node, sizes):
        return [NONLINEAR]
    return [NORMALISED] if has_normalised_weights(node, sizes) else []


def _summed(sizes: tuple[int, ...], divisors: Divisors, node: Node) -> Term:
    return (
        Term("mean", math.prod(divisors), divisors, sizes, node=node)
        if divisors
        else Term("sum", sizes=sizes, node=node)
    )


def _length(made_by: Node, sizes: Sequence[int], rows: int) -> float:
    """Return how many things a mean over so many elements counts: dim 0, or, where the graph shows
    that another dimension holds the samples, these.

    If none has as many as there are samples, none holds them.
    """
    if not sizes:
        return 1.0
    if rows not in sizes[1:] or sizes[0] == rows:
        return float(sizes[0])
    dims = samples_in(made_by, sizes).dims
    return float(sizes[dims[0]] if dims and dims[0] < len(sizes) else sizes[0])


def _stacked(places: list[Place], rows: int, divisors: Divisors, depth: int) -> list[Term]:
    return [
        term
        for one in places
        for term in _in_place(one, _terms(one.loss, rows, (*divisors, *one.over), depth - 1))
    ]


def _in_place(place: Place, found: list[Term]) -> list[Term]:
    if place.weighed_by is None:
        return found
    return _weighed_by(place.weighed_by, place.place, found)


def _weighed_by(node: Node, place: int | None, found: list[Term]) -> list[Term]:
    """A product with parameters stands for the term: its other side reads the term's value."""
    if len(found) > 1 or any(term.number is None for term in found):
        return [UNKNOWN]
    return [replace(term, node=node, place=place) for term in found]


def _of_all(node: Node, rows: int, divisors: Divisors, depth: int) -> list[Term]:
    children = [child for child, _ in node.next_functions if child is not None]
    return [term for child in children for term in _terms(child, rows, divisors, depth - 1)]


def _product(node: Node, name: str, rows: int, divisors: Divisors, depth: int) -> list[Term]:
    """Read a number times a term, or a term over a number."""
    children = [child for child, _ in node.next_functions if child is not None]
    if len(children) == 2:
        return _product_of_two(node, name, children, rows, divisors, depth)
    number = saved.other(node) if getattr(node, saved.SELF, None) is None else saved.own(node)
    if len(children) != 1 or number is None or (isinstance(number, Tensor) and number.numel() != 1):
        return [UNKNOWN]
    if isinstance(number, Tensor) and number.is_cpu:
        number = saved.number_in(number)
    if isinstance(number, complex):
        return [UNKNOWN]
    if name.startswith("Div"):
        return _terms(children[0], rows, (*divisors, abs(number)), depth - 1)
    if not isinstance(number, Tensor) and not number:
        return []  # `+ 0 * output.sum()` is there only to reach parameters
    return _terms(children[0], rows, (*divisors, 1.0 / abs(number)), depth - 1)


def _product_of_two(
    node: Node, name: str, children: list[Node], rows: int, divisors: Divisors, depth: int
) -> list[Term]:
    """Read a term times a number that is made of parameters, such as the weight of a task."""
    first, second = children
    if name.startswith("Mul") and is_of_parameters(first):
        first, second = second, first
    if not is_of_parameters(second):
        return [NONLINEAR]
    found = [] if is_of_parameters(first) else _terms(first, rows, divisors, depth - 1)
    return _weighed_by(node, None, found)
