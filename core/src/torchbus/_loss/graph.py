"""What a loss is a mean of, as its graph tells: so many samples, targets that are not ignored, elements behind a mask."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Number = float | Tensor  # a tensor where it is on a GPU: to read it would wait
Divisors = tuple[Number, ...]

ARITHMETIC = ("AddBackward0", "SubBackward0", "NegBackward0", "RsubBackward1", "AddBackward1", "SubBackward1")
SHAPES = ("ViewBackward0", "UnsafeViewBackward0", "SqueezeBackward0", "SqueezeBackward1", "UnsqueezeBackward0", "CloneBackward0", "ToCopyBackward0")
PRODUCTS = ("MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1")
SUMS = ("SumBackward0", "NansumBackward0")
WITH_COUNT = ("NllLossBackward0", "NllLoss2DBackward0")
OF_ONE_TENSOR = ("PowBackward0", "AbsBackward0", "LinalgVectorNormBackward0", "NormBackward0", "SquareBackward0")
MEAN, SUM = 1, 2  # as torch numbers them
DEPTH = 64


@dataclass(slots=True)
class Term:
    """One of the terms that a loss adds up.

    ``reduction``: "mean", "sum", "unknown" or "hidden" (the graph of a compiled function). ``number``: how many things it is a mean of; None
    where that can't be told. ``divisors``: it is a sum that the loop has
    divided by these, whose product is ``number``. ``sizes``: the shape of what was reduced. ``over``: what the loop has
    divided a mean by, once more. ``node``: where the graph reduces it; None for a term that can't be told.
    """

    reduction: str
    number: Number | None = None
    divisors: Divisors = ()
    sizes: tuple[int, ...] = ()
    over: Divisors = ()
    node: Any = field(default=None, compare=False, repr=False)


UNKNOWN = Term("unknown")  # nobody changes it


def terms_of(loss: Tensor, rows: int = 0) -> list[Term]:
    """The terms of a loss, but those that hold parameters only (weight decay), which are the same on all ranks.

    ``rows``: the number of samples behind it on this rank, 0 where nobody has counted.
    """
    node = loss.grad_fn
    return [] if node is None else _terms(node, rows, (), DEPTH)


def _terms(node: Any, rows: int, divisors: Divisors, depth: int) -> list[Term]:
    name = type(node).__name__
    if name in WITH_COUNT:
        return [_with_count(node, divisors)]
    if name == "MeanBackward0":
        return _mean(node, rows, divisors, depth)
    if hasattr(node, "_saved_reduction"):
        return [_reduced(node._saved_reduction, node, rows, divisors)]
    if name in SUMS:
        return _sum(node, rows, divisors, depth)
    if name in ARITHMETIC and depth:
        return [term for child, _ in node.next_functions if child is not None for term in _terms(child, rows, divisors, depth - 1)]
    if name in SHAPES:
        return _terms(node.next_functions[0][0], rows, divisors, depth - 1) if depth else [UNKNOWN]
    if name in PRODUCTS and depth:
        return _product(node, name, rows, divisors, depth)
    return [Term("hidden") if name.startswith("CompiledFunction") else UNKNOWN]


def _with_count(node: Any, divisors: Divisors) -> Term:
    """Cross entropy and NLL keep the number of targets that count, or the sum of their classes' weights."""
    if node._saved_reduction != MEAN:
        return _summed(tuple(node._saved_target.shape), divisors, node)
    count = node._saved_total_weight
    return Term("mean", count.item() if count.device.type == "cpu" else count, over=divisors, node=node)


def _reduced(reduction: int, node: Any, rows: int, divisors: Divisors) -> Term:
    values = getattr(node, "_saved_self", None)
    sizes = () if values is None else tuple(values.shape)
    if reduction == SUM:
        return _summed(sizes, divisors, node)
    return Term("mean", _length(sizes, rows), sizes=sizes, over=divisors, node=node) if reduction == MEAN else UNKNOWN


def _mean(node: Any, rows: int, divisors: Divisors, depth: int) -> list[Term]:
    sizes = node._saved_self_sym_sizes
    child = node.next_functions[0][0]
    if depth and (not sizes or _is_list_of_numbers(child, sizes)):
        return _each(child, rows, (*divisors, float(sizes[0])) if sizes else divisors, depth)
    return [] if _of_a_parameter(child) else [Term("mean", _length(sizes, rows), sizes=tuple(sizes), over=divisors, node=node)]


def _sum(node: Any, rows: int, divisors: Divisors, depth: int) -> list[Term]:
    sizes = tuple(node._saved_self_sym_sizes if hasattr(node, "_saved_self_sym_sizes") else node._saved_self.shape)
    child = node.next_functions[0][0]
    if depth and (not sizes or _is_list_of_numbers(child, sizes)):
        return _each(child, rows, divisors, depth)
    return [] if _of_a_parameter(child) else [_summed(sizes, divisors, node)]


def _summed(sizes: tuple[int, ...], divisors: Divisors, node: Any) -> Term:
    return Term("mean", math.prod(divisors), divisors, sizes, node=node) if divisors else Term("sum", sizes=sizes, node=node)


def _length(sizes: Any, rows: int) -> float:
    """How many things a mean over so many elements counts: samples, if any dimension has as many, else the first dimension."""
    return float(rows if rows in sizes else sizes[0]) if sizes else 1.0


def _is_list_of_numbers(node: Any, sizes: Any) -> bool:
    """``torch.stack([loss_a, loss_b])``."""
    return type(node).__name__ == "StackBackward0" and len(sizes) == 1 and len(node.next_functions) == sizes[0]


def _each(node: Any, rows: int, divisors: Divisors, depth: int) -> list[Term]:
    if type(node).__name__ != "StackBackward0":
        return _terms(node, rows, divisors, depth - 1)
    return [term for child, _ in node.next_functions if child is not None for term in _terms(child, rows, divisors, depth - 1)]


def _product(node: Any, name: str, rows: int, divisors: Divisors, depth: int) -> list[Term]:
    """A number times a term, or a term over a number."""
    children = [child for child, _ in node.next_functions if child is not None]
    number = node._saved_other if getattr(node, "_saved_self", None) is None else node._saved_self
    if len(children) != 1 or number is None or (isinstance(number, Tensor) and number.numel() != 1):
        return [UNKNOWN]
    if isinstance(number, Tensor) and number.device.type == "cpu":
        number = number.item()
    if isinstance(number, complex):
        return [UNKNOWN]
    if name.startswith("Div"):
        return _terms(children[0], rows, (*divisors, abs(number)), depth - 1)
    if not isinstance(number, Tensor) and not number:
        return []  # `+ 0 * output.sum()`: for what it reaches
    return _terms(children[0], rows, (*divisors, 1.0 / abs(number)), depth - 1)


def _of_a_parameter(node: Any) -> bool:
    """Whether what is reduced is a function of one parameter and nothing else."""
    for _ in range(4):
        if type(node).__name__ == "AccumulateGrad":
            return True
        children = {child for child, _ in node.next_functions if child is not None}
        own = type(node).__name__ in OF_ONE_TENSOR or (type(node).__name__ == "MulBackward0" and len(node.next_functions) == 2)
        if not own or len(children) != 1 or any(child is None for child, _ in node.next_functions):
            return False
        node = children.pop()
    return False


def unless_clamped(term: Term, loss: Tensor) -> Number:
    """``sum / mask.sum().clamp(min=1)`` where nothing is left by the mask: a loss of zero over one, which counts nothing."""
    number = term.number
    if isinstance(number, Tensor):
        return torch.where((number == 1) & (loss.detach() == 0), 0, number) if term.divisors else number
    assert number is not None
    return 0.0 if term.divisors and number == 1.0 and not loss.item() else number


def same(a: float, b: float) -> bool:
    """Two counts, told in float32 maybe."""
    return math.isclose(a, b, rel_tol=1e-6)
