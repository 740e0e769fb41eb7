"""Finds what is a function of parameters, and of no sample, in a loss's graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torchbus_strategy import compat

OF_ONE_TENSOR = (
    "PowBackward0",
    "AbsBackward0",
    "LinalgVectorNormBackward0",
    "NormBackward0",
    "SquareBackward0",
)
OF_ONE_NUMBER = (
    "SqrtBackward0",
    "PowBackward0",
    "ExpBackward0",
    "LogBackward0",
    "Log1PBackward0",
    "ReciprocalBackward0",
    "AbsBackward0",
    "ReluBackward0",
    "ClampBackward1",
    "ClampMinBackward0",
    "TanhBackward0",
    "SigmoidBackward0",
    "SoftplusBackward0",
    "NormBackward0",
    "LinalgVectorNormBackward0",
)
"""Functions of one number that are not linear."""
REDUCED = ("SumBackward0", "NansumBackward0", "MeanBackward0")
OF_NUMBERS = {
    "AddBackward0",
    "SubBackward0",
    "NegBackward0",
    "RsubBackward1",
    "MulBackward0",
    "DivBackward0",
    *OF_ONE_NUMBER,
    "SelectBackward0",
    "UnbindBackward0",
    "StackBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "ViewBackward0",
}
"""What one computes with single numbers."""
OF_MATRICES = (
    "MmBackward0",
    "BmmBackward0",
    "CdistBackward0",
    "LinalgVectorNormBackward0",
    "NormBackward0",
)
OF_SHAPES = (
    "TBackward0",
    "TransposeBackward0",
    "PermuteBackward0",
    "ExpandBackward0",
    "TrilBackward0",
    "TriuBackward0",
)
OF_COPIES = ("ToCopyBackward0", "CloneBackward0")
"""Autocast makes the first of a weight."""
OF_MANY = {*OF_NUMBERS, *OF_MATRICES, *OF_SHAPES, *OF_COPIES, *REDUCED}
DEPTH = 16


def reduces_a_parameter(node: Any) -> bool:
    """Whether what is reduced is a function of one parameter and of nothing else."""
    for _ in range(4):
        name = type(node).__name__
        if name == "AccumulateGrad":
            return True
        if name not in OF_ONE_TENSOR and name != "MulBackward0":
            return False
        children = {child for child, _ in node.next_functions}
        if len(children) != 1 or None in children:
            return False
        node = children.pop()
    return False


def is_of_parameters(node: Any, depth: int = DEPTH) -> bool:
    """Whether a number is made of parameters, constants and nothing else.

    Examples are the weight of a task that is a parameter itself, and a penalty of weights.
    """
    name = type(node).__name__
    if reduces_a_parameter(node):
        return True
    if name in REDUCED:
        return reduces_a_parameter(node.next_functions[0][0])
    if name not in OF_NUMBERS or not depth:
        return False
    children = [child for child, _ in node.next_functions if child is not None]
    return (
        bool(children)
        and not any(is_many(getattr(node, side, None)) for side in compat.FACTORS)
        and all(is_of_parameters(child, depth - 1) for child in children)
    )


def may_be_of_parameters(node: Any, depth: int = DEPTH, surely: bool = False) -> bool:
    """Whether it may be a function of parameters, as ``(w.T @ w - I).norm()`` is.

    The graph does not show what was subtracted: it may be the batch. ``surely``: it is not.
    """
    name = type(node).__name__
    if name == "AccumulateGrad":
        return not surely or isinstance(node.variable, nn.Parameter)
    if name not in OF_MANY or not depth:
        return False
    children = [child for child, _ in node.next_functions]
    if name in OF_MATRICES and None in children:
        return False
    given = [getattr(node, side, None) for side in compat.FACTORS]
    if any(map(is_many, given)):
        return False
    if (
        surely
        and None in children
        and (name not in ("MulBackward0", "DivBackward0") or any(map(_has_dims, given)))
    ):
        return False
    found = [child for child in children if child is not None]
    return bool(found) and all(may_be_of_parameters(child, depth - 1, surely) for child in found)


def _has_dims(side: Any) -> bool:
    return isinstance(side, torch.Tensor) and side.dim() > 0 and not side.requires_grad


def is_many(side: Any) -> bool:
    """Whether a factor holds several numbers, as a batch does."""
    return hasattr(side, "numel") and side.numel() > 1 and not side.requires_grad


NORMS = {"NormBackward0", "LinalgVectorNormBackward0"}
ELEMENTWISE = {
    *{*OF_ONE_NUMBER} - NORMS,
    "AddBackward0",
    "SubBackward0",
    "RsubBackward1",
    "NegBackward0",
    "MulBackward0",
    "DivBackward0",
    "WhereBackward0",
    "SmoothL1LossBackward0",
    "HuberLossBackward0",
    "ViewBackward0",
    "UnsafeViewBackward0",
    "TBackward0",
    "TransposeBackward0",
    "PermuteBackward0",
    *OF_COPIES,
}
"""What leaves the number of elements as it is, unless it broadcasts."""


def is_of_elements(node: Any, numel: int, rows: int) -> bool:
    """Whether ``numel`` numbers are one function of the elements of parameters and of constants, as
    in ``fisher * (w - old) ** 2``.

    The constants have the parameters' shape, which data do not have: they would be broadcast. Only
    a single sample (``rows``) may be alike.
    """
    return numel > 1 and rows != 1 and _elements_of_parameters(node, DEPTH) == numel


def _elements_of_parameters(node: Any, depth: int) -> int:
    """Return how many elements they have; 0 if it may be a function of anything else."""
    if type(node).__name__ == "AccumulateGrad":
        return node.variable.numel() if isinstance(node.variable, nn.Parameter) else 0
    children = [child for child, _ in node.next_functions if child is not None]
    each = [_elements_of_parameters(child, depth - 1) for child in children] if depth else []
    if not each or not all(each):
        return 0
    if type(node).__name__ == "CatBackward0":
        return sum(each)
    if type(node).__name__ == "MmBackward0" and len(each) == 2:
        first, second = compat.saved(node, compat.SELF), compat.saved(node, compat.MAT2)
        return 0 if first is None or second is None else len(first) * second.shape[1]
    is_one_size = type(node).__name__ in ELEMENTWISE and len({*each}) == 1
    return each[0] if is_one_size else 0
