"""Whether a loss is a mean or a sum over samples, read from its graph."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchbus._compat.gradients import check_reduction, reduction
from torchbus._session.notices import warn

ARITHMETIC = ("AddBackward0", "SubBackward0", "NegBackward0", "MulBackward0")
REDUCTIONS = ("none", "mean", "sum")
UNKNOWN = "unknown"


def reductions(node: Any, depth: int = 20) -> set[str]:
    """How the terms of a loss reduce their samples: any of "mean", "sum" and "unknown".

    Follows sums and differences of scalars down to the nodes that reduce. A product may divide by a
    number of samples, so a sum below one is unknown.
    """
    name = type(node).__name__
    if name in ARITHMETIC and depth:
        below = set().union(
            *[reductions(child, depth - 1) for child, _ in node.next_functions if child is not None]
        )
        return {UNKNOWN if name == "MulBackward0" and term == "sum" else term for term in below}
    reduced = reduction(node)
    if reduced is not None:
        return {REDUCTIONS[reduced]}
    return (
        {"mean"}
        if name.startswith("MeanBackward")
        else {"sum"}
        if name == "SumBackward0"
        else {UNKNOWN}
    )


def look(loss: Tensor, loss_reduction: str) -> str:
    """Warn if the graph contradicts ``loss_reduction``. Returns the warning, or ""."""
    check_reduction()
    found = reductions(loss.grad_fn) if loss.grad_fn is not None else {UNKNOWN}
    other = "sum" if loss_reduction == "mean" else "mean"
    if found - {UNKNOWN} != {other}:
        return ""
    words = (
        f"the loss looks like a {other} over samples, but is treated as a {loss_reduction}: its"
        f" gradients are {'too small' if other == 'sum' else 'too large'} by the number of ranks."
        f" If so, say loss_reduction={other!r}"
    )
    warn(words)
    return words
