"""The numbers that the loop holds on the way to its loss: before a scaler, a division, a sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple
from zlib import crc32

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torchbus.compat import python
from torchbus.plugin import BackwardCall, Context, users_frame

from torchbus_strategy import compat
from torchbus_strategy.batches import rows_here
from torchbus_strategy.compat import is_view
from torchbus_strategy.graph import nodes_below
from torchbus_strategy.loss.of_parameters import is_of_parameters
from torchbus_strategy.loss.reading import (
    ARITHMETIC,
    READING_PRODUCTS,
    SUMS,
    below,
    is_sum,
    terms_of,
)
from torchbus_strategy.loss.terms import Count, Number, Term, weighted
from torchbus_strategy.loss.values import weighed

Edge = tuple[Node, int]
MOST = 4
NODES = 64
FRAMES = 4
IN_A_CONTAINER = 32
CASTS = ("ToCopyBackward0", "CloneBackward0")
LINEAR = {*ARITHMETIC, *READING_PRODUCTS, *CASTS}
FACTORS = {*READING_PRODUCTS, *CASTS, "NegBackward0"}
OVER_ALL = {*SUMS, "MeanBackward0"}


class Part(NamedTuple):
    """A tensor of one element that a loss is made of.

    ``is_sum`` says that it is a plain sum over samples, which the loop has divided by their number
    to get the loss.
    """

    tensor: Tensor
    is_sum: bool

    def scale(self, of_loss: Number) -> Number:
        """Return the factor of its mean over ranks, given that of the loss."""
        return 1.0 if self.is_sum else of_loss


def writable_parts(
    session: Context, call: BackwardCall, loss: Tensor | None, count: Count
) -> list[Part]:
    """Return the loop's tensors of one element between terms and loss that can be written to.

    A tensor with dimensions counts only if this rank has several samples: with one sample, it may
    be a model's output.

    If terms have separate weights, and the graph has not saved their values, it returns only a
    tensor that equals the loss up to a factor.
    """
    if loss is None or call.retain_graph or (count.value is None and not has_parts(loss)):
        return []
    parts = [one for one in parts_of(loss) if not one.dim() or rows_here(session) > 1]
    if count.value is not None and any(_weighed(part, count) is None for part in parts):
        parts = [unscaled(loss)]
    sums = _sums(parts) if any(term.divisors for term in _terms(count)) else set()
    return [
        Part(part, id(part) in sums) for part in parts if part is not loss and not is_view(part)
    ]


def _terms(count: Count) -> Sequence[Term]:
    if count.weighted_terms is not None:
        return count.weighted_terms.terms
    return () if count.term is None else (count.term,)


def _sums(parts: Sequence[Tensor]) -> set[int]:
    """Return the ids of parts that are sums over samples, or terms of such a part."""
    found: set[int] = set()
    in_sums: set[Node | None] = set()
    for part in parts:
        terms = terms_of(part)
        nodes = {term.node for term in terms}
        if is_sum(terms) or (nodes and nodes <= in_sums):
            found.add(id(part))
            in_sums |= nodes - {None}
    return found


def weigh_parts(
    session: Context, parts: Sequence[Part], loss: Tensor, count: Count
) -> list[Number]:
    """Return what this rank adds to the mean over ranks of each part.

    ``loss`` has one element.
    """
    of_sum = float(session.world.data.parts) if session.share.weight else 0.0
    return [_weighed_part(part, loss, count, of_sum) for part in parts]


def _weighed_part(part: Part, loss: Tensor, count: Count, of_sum: float) -> Number:
    number, whole = part.tensor.detach().reshape(()), loss.detach().reshape(())
    if part.is_sum:
        return weighted(number, of_sum)
    if count.value is None:
        return weighted(number, count.weight)
    found = _weighed(part.tensor, count)
    if found is not None:
        return found
    return torch.where(whole == 0.0, 0.0, number / whole) * count.value


def _weighed(part: Tensor, count: Count) -> Number | None:
    """Return a part's weighted value, or None if it can't be computed.

    The part adds up terms with separate weights, or is inside one term: before a learned weight.
    """
    if count.weighted_terms is None:
        return None
    terms = count.weighted_terms.terms
    around = [
        weight
        for term, weight in zip(terms, count.weights, strict=True)
        if part.grad_fn in nodes_below([_made(term)], NODES)
    ]
    if around:
        return weighted(part.detach(), around[0]) if len(around) == 1 else None
    return weighed(part, terms, count.weights)


def _made(term: Term) -> Node:
    """Return the node that has made a term: of a vector times learned weights, one of its items."""
    stacked = None if term.place is None else _stack(term.reduced_by)
    item = None if stacked is None else stacked.next_functions[term.place or 0][0]
    return item or term.reduced_by


def parts_of(loss: Tensor) -> list[Tensor]:
    """Return up to ``MOST`` numbers that the loss adds up, times constants or learned weights.

    They are held by a variable of the loop, by an attribute of the object whose method the loop
    is, or by a list, tuple or dict in one of these. They are in the graph's order.
    """
    edges = _edges(loss, LINEAR)
    return _held(edges)[:MOST] if edges else []


def has_parts(loss: Tensor) -> bool:
    """Whether the loss is made of other numbers, as far as its root shows."""
    node = loss.grad_fn
    name = type(node).__name__
    if node is not None and name in OVER_ALL:
        return _of_one(node) or _stack(below(node)) is not None
    return name in LINEAR


def _of_one(node: Node) -> bool:
    """Whether a node reduces a single number, as in ``(a + b).mean()``."""
    return math.prod(compat.sizes(node)) == 1


def _stack(node: Node) -> Node | None:
    """Return the ``torch.stack`` that a node is, or that it multiplies by learned weights."""
    if type(node).__name__ in READING_PRODUCTS:
        children = [one for one, _ in node.next_functions if one is not None]
        numbers = [one for one in children if not is_of_parameters(one)]
        node = numbers[0] if len(numbers) == 1 else node
    return node if type(node).__name__ == "StackBackward0" else None


def unscaled(loss: Tensor) -> Tensor:
    """Return what the loop has multiplied by constants to get this loss: a scaler's, for example.

    It is the earliest tensor of one element on that path that the loop holds, or the loss itself.
    """
    edges = _edges(loss, FACTORS) if type(loss.grad_fn).__name__ in FACTORS else []
    return next(reversed(_held(edges)), loss) if edges else loss


def kind_of(parts: Sequence[Part]) -> int:
    """Return a checksum of the names under which the loop holds ``parts``.

    Ranks may have different parts.
    """
    names = {id(number): name for name, number in _numbers(users_frame()[0])} if parts else {}
    each = [(names[id(part.tensor)], part.is_sum) for part in parts]
    return crc32(repr(each).encode()) if parts else 0


def _edges(loss: Tensor, through: set[str]) -> list[Edge]:
    root = loss.grad_fn
    found: dict[Edge, None] = {}
    waiting = [] if root is None else list(_below(root, through))
    while waiting and len(found) < NODES:
        edge = waiting.pop(0)
        if edge not in found:
            found[edge] = None
            waiting += _below(edge[0], through)
    return list(found)


def _below(node: Node, through: set[str]) -> Iterator[Edge]:
    name = type(node).__name__
    if name in OVER_ALL and not _of_one(node):
        stack = _stack(below(node)) if through is LINEAR else None
        if stack is None:
            return
        node = stack
    elif name not in through and name not in OVER_ALL:
        return
    children = [(child, place) for child, place in node.next_functions if child is not None]
    if name in READING_PRODUCTS and through is LINEAR and len(children) > 1:
        children = [edge for edge in children if not is_of_parameters(edge[0])]
    if name not in READING_PRODUCTS or len(children) == 1:
        yield from children


def _held(edges: list[Edge]) -> list[Tensor]:
    wanted = set(edges)
    numbers = [number for _, number in _numbers(users_frame()[0])]
    there = {(one.grad_fn, one.output_nr): one for one in numbers}
    return [there[edge] for edge in edges if edge in wanted and edge in there]  # type: ignore[index]


def _numbers(frame: FrameType | None) -> Iterator[tuple[object, Tensor]]:
    """Yield each number with a graph that the innermost frames hold, with its name.

    It is held by a variable, or by an attribute of the object whose method a frame is.
    """
    for depth in range(FRAMES):
        if frame is None:
            return
        variables, code = python.read(frame), frame.f_code
        owner = variables.get(code.co_varnames[0]) if code.co_argcount else None
        for place, values in enumerate((variables, getattr(owner, "__dict__", {}))):
            for name, value in list(values.items()):
                yield from _inside((depth, place, name), value)
        frame = frame.f_back


def _inside(name: tuple[object, ...], value: object) -> Iterator[tuple[object, Tensor]]:
    if _is_number(value):
        yield name, value  # type: ignore[misc]
    elif type(value) in (dict, list, tuple) and len(value) <= IN_A_CONTAINER:  # type: ignore[arg-type]
        each: Any = value.items() if type(value) is dict else enumerate(value)  # type: ignore[arg-type]
        yield from (((*name, key), one) for key, one in each if _is_number(one))


def _is_number(value: object) -> bool:
    return type(value) is Tensor and value.numel() == 1 and value.grad_fn is not None
