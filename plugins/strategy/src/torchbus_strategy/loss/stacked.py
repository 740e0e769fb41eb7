"""Losses in a vector that is summed, as by ``torch.stack(losses).sum()``: each is a term."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import Node

from torchbus_strategy import compat
from torchbus_strategy.graph import children_of, nodes_below, sizes_of
from torchbus_strategy.loss.of_parameters import is_of_parameters
from torchbus_strategy.loss.samples import samples_in
from torchbus_strategy.loss.terms import Coefficient, Divisors, Number

LISTS = ("StackBackward0", "CatBackward0")
ADDED = ("AddBackward0", "SubBackward0", "NegBackward0", "CloneBackward0", "ToCopyBackward0")
STACKED_PRODUCTS = ("MulBackward0", "DivBackward0")
UNBOUND = "UnbindBackward0"
STACKED_DEPTH = 8
NODES_OF_ONE = 5_000


class VectorElement(NamedTuple):
    """One number of a vector.

    Attributes:
        loss: The node that has made the number.
        place: The number's index.
        over: The numbers by which the loop has divided it.
        weighed_by: The node that has multiplied the vector by parameters, if any.
    """

    loss: Node
    place: int
    over: Divisors = ()
    weighed_by: Node | None = None


def places_in(node: Node, size: int, depth: int = STACKED_DEPTH) -> list[VectorElement] | None:
    """Return the losses of a vector of ``size`` losses. None if it holds something else.

    Losses that need no gradient, and parameters that are added to the vector, are left out.
    """
    name, children = type(node).__name__, [child for child, _ in node.next_functions]
    if name in LISTS:
        stacked = [
            VectorElement(child, place) for place, child in enumerate(children) if child is not None
        ]
        return stacked if len(children) == size else None
    if name not in (*ADDED, *STACKED_PRODUCTS) or not depth:
        return None
    known = [child for child in children if child is not None]
    found = [places_in(child, size, depth - 1) for child in known if not is_of_parameters(child)]
    places = [place for each in found for place in each or ()]
    if not places or None in found:
        return None
    if name in ADDED:
        return places
    return _stacked_product(node, places, size) if len(found) == 1 else None


class Row(NamedTuple):
    """One of the tensors over which a loop iterates: ``for row in model(x)``."""

    unbound: Node
    number: int
    sizes: tuple[int, ...]


def are_samples(places: list[VectorElement]) -> bool:
    """Whether each number is made of one sample: ``torch.stack([score(row) for row in model(x)])``.

    The numbers of several heads, over which a loop iterates as well, are made of all samples.
    """
    first, *others = [place.loss for place in places]
    below_first = set(nodes_below([first], NODES_OF_ONE))
    rows = [_rows_of(loss, below_first) for loss in others]
    if not rows or any(len(each) != 1 or each[0].unbound != rows[0][0].unbound for each in rows):
        return False
    unbound, _, sizes = rows[0][0]
    numbers = {row.number for each in (*rows, _rows_of(first, {unbound})) for row in each}
    child = unbound.next_functions[0][0]
    if numbers != set(range(len(places))) or child is None or compat.dim(unbound) != 0:
        return False
    return samples_in(child, (len(places), *sizes)).dims[:1] == (0,)


def _rows_of(loss: Node, ends: set[Node]) -> list[Row]:
    """Return the rows of the tensors in ``ends`` from which a number is computed."""
    found = {
        (child, number): Row(child, number, sizes_of(node))
        for node in nodes_below(
            [loss], NODES_OF_ONE, lambda one: [c for c in children_of(one) if c not in ends]
        )
        for child, number in node.next_functions
        if child in ends and type(child).__name__ == UNBOUND
    }
    return list(found.values())


def _stacked_product(
    node: Node, places: list[VectorElement], size: int
) -> list[VectorElement] | None:
    """Return losses that are multiplied or divided by numbers or parameters.

    None if the losses are the divisor.
    """
    (first, _), *second = node.next_functions
    divides = type(node).__name__ == "DivBackward0"
    if divides and (first is None or is_of_parameters(first)):
        return None
    if first is None or all(child is None for child, _ in second):
        return _weighed(node, places, size, divides)
    if any(place.weighed_by is not None for place in places):
        return None
    return [place._replace(weighed_by=node) for place in places]


def places_of_dot(node: Node) -> list[VectorElement] | None:
    """Return the numbers of ``torch.dot(weights, torch.stack(losses))``."""
    children = [child for child, _ in node.next_functions if child is not None]
    weights = [one for one in compat.sides_of_dot(node) if one is not None]
    if len(children) != 1 or len(weights) != 1:
        return None
    places = places_in(children[0], weights[0].numel())
    return places and _times(places, _numbers(weights[0], weights[0].numel()), False)


def place_of_select(node: Node) -> list[VectorElement] | None:
    """Return the one number of ``torch.stack(losses)[1]``."""
    sizes, child = compat.sizes(node), node.next_functions[0][0]
    places = places_in(child, sizes[0]) if len(sizes) == 1 and child is not None else None
    return places and [
        one for one in places if one.place == compat.signed(compat.index(node)) % sizes[0]
    ]


def _weighed(
    node: Node, places: list[VectorElement], size: int, divides: bool
) -> list[VectorElement] | None:
    """Return losses that a node multiplies or divides by constants."""
    given = [getattr(node, name, None) for name in compat.FACTORS]
    number = next((one for one in given if one is not None), None)
    return _times(places, _numbers(number, size), divides)


def _times(
    places: list[VectorElement], factors: list[Number] | None, divides: bool
) -> list[VectorElement] | None:
    """Multiply or divide each loss by its factor. Losses with a factor of 0 are left out."""
    if factors is None:
        return None
    weighed = [(one, factors[one.place]) for one in places]
    return [
        one._replace(over=(*one.over, factor if divides else as_divisor(factor)))
        for one, factor in weighed
        if isinstance(factor, Tensor) or factor
    ]


def _numbers(given: object, size: int) -> list[Number] | None:
    """Return the absolute values of ``size`` factors. A single one stands for all of them."""
    if isinstance(given, int | float):
        return [abs(given)] * size
    if not isinstance(given, Tensor) or given.is_complex() or given.dim() > 1:
        return None
    each = given.detach().abs().reshape(-1).unbind()
    numbers = [compat.number_in(one) for one in each] if given.is_cpu else list(each)
    return numbers * size if len(numbers) == 1 else numbers if len(numbers) == size else None


def as_divisor(factor: Number) -> Number:
    return 1.0 / factor.abs() if isinstance(factor, Tensor) else Coefficient(1.0 / abs(factor))
