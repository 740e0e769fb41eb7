"""The numbers that the loop holds on the way to its loss: before a scaler, a division, a sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FrameType
from zlib import crc32

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torchbus.compat import python
from torchbus.plugin import BackwardCall, users_frame

from torchbus_strategy.compat import is_view
from torchbus_strategy.loss.reading import ARITHMETIC, READING_PRODUCTS, SUMS, below
from torchbus_strategy.loss.samples import is_of_parameters
from torchbus_strategy.loss.terms import Count, Number, weighted

Edge = tuple[Node, int]
MOST = 4
NODES = 64
FRAMES = 4
IN_A_CONTAINER = 32
CASTS = ("ToCopyBackward0", "CloneBackward0")
LINEAR = {*ARITHMETIC, *READING_PRODUCTS, *CASTS}
FACTORS = {*READING_PRODUCTS, *CASTS, "NegBackward0"}
OVER_ALL = {*SUMS, "MeanBackward0"}


def writable_parts(call: BackwardCall, loss: Tensor | None, count: Count) -> list[Tensor]:
    """Return the loop's tensors of one element between terms and loss that can be written to.

    If terms have separate weights, only those that equal the loss up to a factor.
    """
    if loss is None or call.retain_graph or (count.value is None and not has_parts(loss)):
        return []
    parts = parts_of(loss) if count.value is None else [unscaled(loss)]
    return [part for part in parts if part is not loss and not is_view(part)]


def weigh_parts(parts: Sequence[Tensor], loss: Tensor, count: Count) -> list[Number]:
    """Return what this rank adds to the mean of each part over ranks: tensors of one element."""
    value, found = count.value, [part.detach() for part in parts]
    if value is None:
        return [weighted(part, count.weight) for part in found]
    whole = loss.detach()
    return [torch.where(whole == 0.0, 0.0, part / whole) * value for part in found]


def parts_of(loss: Tensor) -> list[Tensor]:
    """Return up to ``MOST`` numbers that the loss adds up, times constants or learned weights.

    They are those that a variable of the loop names, or that a list or dict there has, in the
    graph's order.
    """
    edges = _edges(loss, LINEAR)
    return _held(edges)[:MOST] if edges else []


def has_parts(loss: Tensor) -> bool:
    """Whether the loss is made of other numbers, as far as its root shows."""
    node = loss.grad_fn
    name = type(node).__name__
    if node is not None and name in OVER_ALL:
        return type(below(node)).__name__ == "StackBackward0"
    return name in LINEAR


def unscaled(loss: Tensor) -> Tensor:
    """Return what the loop has multiplied by constants to get this loss: a scaler's, for example.

    It is the first tensor of one element on that path that a variable of the loop names, or the
    loss itself.
    """
    edges = _edges(loss, FACTORS) if type(loss.grad_fn).__name__ in FACTORS else []
    return next(reversed(_held(edges)), loss) if edges else loss


def kind_of(loss: Tensor, parts: list[Tensor]) -> int:
    """Return a checksum of where the parts, of any shape, are in the graph of the loss.

    Ranks may have different ones.
    """
    if not parts:
        return 0
    edges = _edges(loss, LINEAR)
    places = [(edges.index((part.grad_fn, part.output_nr)), len(edges)) for part in parts]  # type: ignore[arg-type]
    return crc32(repr((places, [type(node).__name__ for node, _ in edges])).encode())


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
    if name in OVER_ALL and through is LINEAR:
        node = below(node)
        if type(node).__name__ != "StackBackward0":
            return
    elif name not in through:
        return
    children = [(child, place) for child, place in node.next_functions if child is not None]
    if name in READING_PRODUCTS and through is LINEAR and len(children) > 1:
        children = [edge for edge in children if not is_of_parameters(edge[0])]
    if name not in READING_PRODUCTS or len(children) == 1:
        yield from children


def _held(edges: list[Edge]) -> list[Tensor]:
    there = {}
    wanted = set(edges)
    for number in _numbers(users_frame()[0]):
        edge = (number.grad_fn, number.output_nr)
        if edge in wanted:
            there[edge] = number
    return [there[edge] for edge in edges if edge in there]  # type: ignore[index]


def _numbers(frame: FrameType | None) -> Iterator[Tensor]:
    """The numbers with a graph that variables of the innermost frames name."""
    for _ in range(FRAMES):
        if frame is None:
            return
        for value in python.read(frame).values():
            if type(value) in (dict, list, tuple) and len(value) <= IN_A_CONTAINER:
                inside = value.values() if type(value) is dict else value
                yield from filter(_is_number, inside)
            elif _is_number(value):
                yield value
        frame = frame.f_back


def _is_number(value: object) -> bool:
    return type(value) is Tensor and not value.dim() and value.grad_fn is not None
