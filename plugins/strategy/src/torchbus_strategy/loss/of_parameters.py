"""Finds what is a function of parameters, and of no sample, in a loss's graph."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from torchbus_strategy import compat
from torchbus_strategy.graph import is_parameter, sizes_of

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
"""Operations on single numbers."""
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
    "SliceBackward0",
)
OF_COPIES = ("ToCopyBackward0", "CloneBackward0")
"""Autocast converts a weight with the first."""
OF_MANY = {*OF_NUMBERS, *OF_MATRICES, *OF_SHAPES, *OF_COPIES, *REDUCED}
DEPTH = 16


def reduces_a_parameter(node: Any) -> bool:
    """Whether a node makes a function of one parameter and of nothing else."""
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


def may_be_of_parameters(node: Any, depth: int = DEPTH) -> bool:
    """Whether a node may make a function of parameters only, as ``(w.T @ w - I).norm()`` is.

    The graph does not show what was subtracted: it may be the batch.
    """
    name = type(node).__name__
    if name == "AccumulateGrad":
        return True
    if name not in OF_MANY or not depth:
        return False
    children = [child for child, _ in node.next_functions]
    if name in OF_MATRICES and None in children:
        return False
    given = [getattr(node, side, None) for side in compat.FACTORS]
    if any(map(is_many, given)):
        return False
    found = [child for child in children if child is not None]
    return bool(found) and all(may_be_of_parameters(child, depth - 1) for child in found)


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
    "SqueezeBackward0",
    "SqueezeBackward1",
    "UnsqueezeBackward0",
    "TBackward0",
    "TransposeBackward0",
    "PermuteBackward0",
    "SoftmaxBackward0",
    "LogSoftmaxBackward0",
    *OF_COPIES,
}
"""Operations that leave the number of elements as it is, unless they broadcast."""
OF_WHOLE = {
    *NORMS,
    *REDUCED,
    "SumBackward1",
    "MeanBackward1",
    "MaxBackward0",
    "MaxBackward1",
    "AmaxBackward0",
    "MinBackward1",
    "StdBackward0",
    "VarBackward0",
    "ProdBackward0",
    "LogsumexpBackward0",
    "SliceBackward0",
    "SelectBackward0",
    "UnbindBackward0",
    "StackBackward0",
    "CatBackward0",
    "DiagonalBackward0",
    "TraceBackward0",
    "TrilBackward0",
    "TriuBackward0",
    "MmBackward0",
    "MvBackward0",
    "BmmBackward0",
    "DotBackward0",
    "CdistBackward0",
    "PdistBackward0",
    "LinalgSvdBackward0",
    "LinalgDetBackward0",
    "LinalgSlogdetBackward0",
}
"""Other functions in penalties. Those that pick rows by indices are left out, because the indices
may come from the batch.
"""


IN_PENALTIES = ELEMENTWISE | OF_WHOLE


class Elements(NamedTuple):
    """The size of a function of parameters and constants.

    ``numel`` is its number of elements, 0 if unknown. ``has_constants`` says that constant tensors
    enter it. If these are broadcast, it has more elements.
    """

    numel: int
    has_constants: bool = False


def is_penalty(node: Any, numel: int, rows: int, is_compared: bool = False) -> bool:
    """Whether ``numel`` numbers are a function of parameters and constants, but not of data.

    An example is ``fisher * (w - old) ** 2``. ``is_compared`` says that a loss function compares
    them with constants, as in ``mse_loss(w, old)``. Constants have the parameters' shape. Data
    do not, and would be broadcast; only if ``rows`` is 1, the single sample may have that shape.
    """
    found = _Search(may_have_constants=rows != 1).elements(node)
    if found is None or not (found.has_constants or is_compared):
        return found is not None
    return found.numel == numel > 1 != rows


class _Search:
    """Looks below a node for anything else than parameters and constants."""

    def __init__(self, may_have_constants: bool) -> None:
        self._may_have_constants = may_have_constants
        self._seen: dict[Any, Elements | None] = {}

    def elements(self, node: Any, depth: int = DEPTH) -> Elements | None:
        """Return the size of what the node has made, or None if anything else enters it."""
        if node not in self._seen:
            self._seen[node] = self._look(node, depth)
        return self._seen[node]

    def _look(self, node: Any, depth: int) -> Elements | None:
        name = type(node).__name__
        if name == "AccumulateGrad":
            leaf = node.variable
            return Elements(leaf.numel()) if is_parameter(leaf) else None
        if not depth or name not in IN_PENALTIES:
            return None
        children = [child for child, _ in node.next_functions]
        known: list[Elements] = []
        for child in filter(None, children):
            found = self.elements(child, depth - 1)
            if found is None:
                return None
            known.append(found)
        has_constant = None in children and not _is_number(node)
        if not known or (has_constant and not self._may_have_constants):
            return None
        return _combined(node, known, has_constant)


def _combined(node: Any, known: list[Elements], has_constant: bool) -> Elements | None:
    """Return the size of a function of ``known`` tensors, and perhaps of a constant."""
    name = type(node).__name__
    numels = {one.numel for one in known}
    has_constants = any(one.has_constants for one in known)
    if name in ELEMENTWISE:
        has_constants |= has_constant
        numel = numels.pop() if len(numels) == 1 else 0
        return Elements(numel, has_constants) if numel or not has_constants else None
    if has_constant:
        return None
    if name == "CatBackward0" and 0 not in numels:
        return Elements(sum(one.numel for one in known), has_constants)
    if has_constants and numels != {math.prod(sizes_of(node))}:
        return None
    return Elements(_numel_of_product(node) if name == "MmBackward0" else 0)


def _numel_of_product(node: Any) -> int:
    first, second = compat.saved(node, compat.SELF), compat.saved(node, compat.MAT2)
    return 0 if first is None or second is None else len(first) * second.shape[1]


def _is_number(node: Any) -> bool:
    """Whether a factor or divisor is a single number."""
    sides = [getattr(node, side, None) for side in compat.FACTORS]
    given = [one for one in sides if isinstance(one, Tensor)]
    return bool(given) and not any(one.dim() and not one.requires_grad for one in given)
