"""What two runs have in common at one place, and what not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchbus_verify.record.reading import Stored

Place = tuple[str, int, int, str]
"""Kind ("gradient", "parameter", ...), optimizer, step, name."""


@dataclass(frozen=True)
class Difference:
    """At one place: ``relative`` to the largest value of the tensor, and what rounding
    ``allowed``.
    """

    kind: str
    name: str
    optimizer: int
    step: int
    relative: float
    allowed: float
    words: str = ""

    @property
    def place(self) -> Place:
        return self.kind, self.optimizer, self.step, self.name

    @property
    def is_more(self) -> bool:
        """Whether rounding does not explain it."""
        return not self.relative <= self.allowed


@dataclass
class Comparison:
    """All places in the order of the loop."""

    places: list[Difference] = field(default_factory=list)
    steps: int = 0
    models: int = 0
    dtype: str = "float32"
    thinned: list[str] = field(default_factory=list)

    @property
    def largest(self) -> float:
        return max((one.relative for one in self.places if one.kind != "loss"), default=0.0)

    def beyond(self) -> list[Difference]:
        """Those that rounding does not explain, the first one first. Losses are looked at apart:
        one whose graph is kept stays the rank's own.
        """
        return [one for one in self.places if one.is_more and one.kind != "loss"]

    def losses_beyond(self) -> list[Difference]:
        return [one for one in self.places if one.is_more and one.kind == "loss"]

    def without(self, names: set[str], missing: set[str]) -> Comparison:
        """Itself, less the tensors of some names, and less those of others where rank 0
        has none.
        """
        self.places = [
            one
            for one in self.places
            if one.name not in names and not (one.name in missing and one.words)
        ]
        return self

    def without_gradients(self) -> Comparison:
        self.places = [one for one in self.places if one.kind != "gradient"]
        return self

    @property
    def tolerated(self) -> float:
        """The largest difference that rounding explains, losses included."""
        return max((one.relative for one in self.places if not one.is_more), default=0.0)


def apart(ours: Tensor, theirs: Tensor, floor: float = 0.0) -> float:
    """The largest difference, relative to the largest value; equal NaNs and infinities are the
    same. Differences below ``floor`` are none.
    """
    if not ours.numel():
        return 0.0
    ours, theirs = ours.double(), theirs.double()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    gap = torch.where(same, 0.0, (ours - theirs).abs())
    if not gap.isfinite().all():
        return math.inf
    largest = max(_largest(ours), _largest(theirs))
    size = float(gap.max())
    return 0.0 if size == 0 or size <= floor else size / largest if largest else math.inf


def _largest(values: Tensor) -> float:
    finite = values[values.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def largest_of(stored: dict[str, Stored | None]) -> float:
    """The largest value in any of these tensors."""
    return max(
        (_largest(one.values().double()) for one in stored.values() if one is not None), default=0.0
    )
