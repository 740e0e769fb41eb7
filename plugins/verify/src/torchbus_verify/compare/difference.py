"""Differences between two runs, by place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from torchbus_verify.record.writing import Event, RankRecord, Stored

Named = Mapping[str, Stored | None]
"""Tensors by name; None for a parameter without a gradient."""


class RelativeDifference(NamedTuple):
    """A difference ``relative`` to the largest value; infinite, with ``text``, if incomparable."""

    name: str
    relative: float
    text: str = ""


def gap(name: str, ours: Named, theirs: Named, floor: float = 0.0) -> RelativeDifference:
    """Compare two tensors. Differences below ``floor`` count as zero."""
    if name not in ours or name not in theirs:
        side = "session" if name in ours else "plain"
        return RelativeDifference(name, math.inf, f"only in the {side} run")
    a, b = ours[name], theirs[name]
    if a is None or b is None:
        text = f"{'no' if a is None else 'a'} gradient, unlike in the plain run"
        return RelativeDifference(name, 0.0) if a is b else RelativeDifference(name, math.inf, text)
    if a.shape != b.shape:
        return RelativeDifference(name, math.inf, f"has the shape {a.shape}, not {b.shape}")
    return RelativeDifference(
        name, 0.0 if a.checksum == b.checksum else distance(a.values(), b.values(), floor)
    )


Place = tuple[str, int, int, str]
"""Kind ("gradient", "parameter", ...), optimizer, step, name."""


@dataclass(frozen=True)
class Difference:
    """The difference at one place, ``relative`` to the tensor's largest value."""

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
        """Whether the difference exceeds what rounding explains."""
        return not self.relative <= self.allowed


@dataclass
class Comparison:
    """The comparison of all places, in the order of the loop."""

    places: list[Difference] = field(default_factory=list)
    steps: int = 0
    models: int = 0
    dtype: str = "float32"
    thinned: list[str] = field(default_factory=list)

    @property
    def largest(self) -> float:
        return max((one.relative for one in self.places if one.kind != "loss"), default=0.0)

    def beyond(self) -> list[Difference]:
        """Return the differences that rounding does not explain, in order.

        Losses are compared separately: a loss whose graph is retained stays the rank's local value.
        """
        return [one for one in self.places if one.is_more and one.kind != "loss"]

    def losses_beyond(self) -> list[Difference]:
        return [one for one in self.places if one.is_more and one.kind == "loss"]

    def without(self, names: set[str], missing: set[str]) -> Comparison:
        """Remove the tensors in ``names``, and those in ``missing`` that could not be compared."""
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
        """The largest difference that rounding explains, including losses."""
        return max((one.relative for one in self.places if not one.is_more), default=0.0)


def distance(ours: Tensor, theirs: Tensor, floor: float = 0.0) -> float:
    """Return the largest difference, relative to the largest value.

    Equal NaNs and infinities are the same; differences below ``floor`` count as zero.
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
    """Return the largest value in any of these tensors."""
    return max(
        (_largest(one.values().double()) for one in stored.values() if one is not None), default=0.0
    )


def different(ranks: list[RankRecord]) -> str:
    """Describe where a rank's parameters first differ from rank 0's; "" if nowhere."""
    for rank, record in enumerate(ranks[1:], start=1):
        for ours, first in zip(record.of("step"), ranks[0].of("step"), strict=False):
            for key in ("parameters", "buffers"):
                name = _first(ours[key], first[key])
                if name:
                    return (
                        f"from step {first['step'] + 1} on rank {rank} has another {name} than"
                        " rank 0"
                    )
    return ""


def local_rows(ranks: list[RankRecord], plain: RankRecord) -> set[str]:
    """Return the parameters with a row for each sample, of which each rank holds its rows."""
    theirs = {name: one for step in plain.of("step") for name, one in step["parameters"].items()}
    held = [
        {name: one for step in record.of("step") for name, one in step["parameters"].items()}
        for record in ranks
    ]
    shapes = {name: [one[name][1] for one in held if one.get(name)] for name in theirs}
    wanted = {name: one[1] for name, one in theirs.items() if one}
    return {name for name, whole in wanted.items() if _are_rows(shapes[name], whole, len(ranks))}


def elsewhere(ranks: list[RankRecord]) -> set[str]:
    """Return the parameters that only other ranks' optimizers hold: their states are sharded."""
    held = [
        {name for step in record.of("step") for name, one in step["parameters"].items() if one}
        for record in ranks
    ]
    return set().union(*held[1:]) - held[0] if held else set()


def hide_gradients(ranks: list[RankRecord]) -> bool:
    """Whether no step has a gradient that the loop could read, because an engine stores them."""
    steps = [step for record in ranks for step in record.of("step")]
    return bool(steps) and not any(one for step in steps for one in step["gradients"].values())


def unseen(ranks: list[RankRecord]) -> list[str]:
    """Return the parameters whose values rank 0 lacks even at the end, as in a pipeline."""
    ends = ranks[0].of("state")[-1:] if ranks else []
    known = {name for end in ends for name, one in end["tensors"].items() if one}
    return sorted(elsewhere(ranks) - known)


def replicas(ranks: list[RankRecord]) -> bool:
    """Whether every rank computed the same sequence of losses before the reduction."""
    losses = [[event["own"] for event in record.of("backward")] for record in ranks]
    return (
        len(ranks) > 1
        and len(losses[0]) > 1
        and None not in losses[0]
        and all(one == losses[0] for one in losses)
    )


def _first(ours: Event, theirs: Event) -> str:
    for name, one in theirs.items():
        other = ours.get(name)
        if one and other and one[1] == other[1] and one[3] != other[3]:
            return name
    return ""


def _are_rows(shapes: list[list[int]], whole: list[int], ranks: int) -> bool:
    """Whether the ranks' shapes add up to the whole one along dim 0."""
    if len(shapes) != ranks or not whole or not all(shapes) or whole in shapes:
        return False
    return sum(shape[0] for shape in shapes) == whole[0]
