"""One of the terms that a loss adds up, and what it counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor
from torch.autograd.graph import Node

Number = float | Tensor  # a tensor if it is on a GPU: reading it would make the host wait
Divisors = tuple[Number, ...]


@dataclass(slots=True)
class Term:
    """One of the terms that a loss adds up.

    ``reduction``: "mean", "sum", "unknown", "hidden" (the graph of a compiled function),
    "nonlinear" (a function of sums and means, such as a root or a ratio, or of the order of
    samples), or "normalised" (its samples' weights depend on those of the others).
    ``number``: how many things it is a mean of, None if unknown. ``divisors``: numbers by which the
    loop has divided a sum; their product is ``number``. ``sizes``: the shape of what was reduced.
    ``over``: numbers by which the loop has divided a mean once more. ``node``: the node that
    reduces it, None if unknown. ``place``: which number it is, if the node makes a vector.
    """

    reduction: str
    number: Number | None = None
    divisors: Divisors = ()
    sizes: tuple[int, ...] = ()
    over: Divisors = ()
    node: Node | None = field(default=None, compare=False, repr=False)
    place: int | None = field(default=None, compare=False, repr=False)

    @property
    def reduced_by(self) -> Node:
        """Return its node; only a term that is known is weighed."""
        assert self.node is not None
        return self.node


# nobody changes them
UNKNOWN, NONLINEAR, NORMALISED = Term("unknown"), Term("nonlinear"), Term("normalised")


def same(a: float, b: float) -> bool:
    """Whether two counts are equal. They may have been exchanged in float32."""
    return math.isclose(a, b, rel_tol=1e-6)
