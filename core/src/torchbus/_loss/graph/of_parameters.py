"""Parts of a loss that hold only parameters, such as weight decay: the same on all ranks."""

from __future__ import annotations

from typing import Any

from torchbus._compat import saved

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
OF_NUMBERS = (
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
)
"""What one computes with single numbers."""
OF_MATRICES = ("MmBackward0", "BmmBackward0", "LinalgVectorNormBackward0", "NormBackward0")
OF_MANY = (*OF_NUMBERS, *OF_MATRICES, "TBackward0", "TransposeBackward0", "PermuteBackward0")
DEPTH = 16


def reduces_a_parameter(node: Any) -> bool:
    """Whether what is reduced is a function of one parameter and of nothing else."""
    for _ in range(4):
        if type(node).__name__ == "AccumulateGrad":
            return True
        children = {child for child, _ in node.next_functions if child is not None}
        own = type(node).__name__ in OF_ONE_TENSOR or (
            type(node).__name__ == "MulBackward0" and len(node.next_functions) == 2
        )
        if not own or len(children) != 1 or any(child is None for child, _ in node.next_functions):
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
    children = [child for child, _ in node.next_functions if child is not None]
    return (
        name in OF_NUMBERS
        and depth > 0
        and bool(children)
        and not any(_is_many(getattr(node, side, None)) for side in saved.FACTORS)
        and all(is_of_parameters(child, depth - 1) for child in children)
    )


def may_be_of_parameters(node: Any, depth: int = DEPTH) -> bool:
    """Whether it may be a function of parameters, as ``(w.T @ w - I).norm()`` is.

    The graph does not show what was subtracted: it may be the batch.
    """
    name, children = type(node).__name__, [child for child, _ in node.next_functions]
    if name == "AccumulateGrad":
        return True
    if name not in (*OF_MANY, *REDUCED) or not depth or (name in OF_MATRICES and None in children):
        return False
    if any(_is_many(getattr(node, side, None)) for side in saved.FACTORS):
        return False
    found = [child for child in children if child is not None]
    return bool(found) and all(may_be_of_parameters(child, depth - 1) for child in found)


def _is_many(side: Any) -> bool:
    """Whether a factor holds several numbers, as a batch does."""
    return hasattr(side, "numel") and side.numel() > 1 and not side.requires_grad
