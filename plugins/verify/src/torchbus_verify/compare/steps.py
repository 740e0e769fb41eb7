"""Compares two records of rank 0, event by event: losses, gradients, parameters, buffers, rates."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchbus_strategy.checks import rounding
from torchbus_verify.compare.difference import Comparison, Difference, Place, gap, largest_of
from torchbus_verify.record.writing import RankRecord, Stored

TENSORS = {"gradients": "gradient", "parameters": "parameter", "buffers": "buffer"}
Drift = dict[Place, float]
"""How far rounding moved the value at each place."""


def compare(
    ours: RankRecord, plain: RankRecord, drift: Drift | None = None, *, backwards: bool = True
) -> Comparison:
    """Compare two records. ``backwards`` is False if one accumulates, and so makes others."""
    walk = Walk(ours, plain, drift or {})
    kinds = ("backward", "step") if backwards else ("step",)
    mine, theirs = (
        [event for event in one.events if event["kind"] in kinds] for one in (ours, plain)
    )
    for left, right in zip(mine, theirs, strict=False):
        if _place(left) != _place(right):
            walk.order(right, f"{_describe(left)} where the plain run makes {_describe(right)}")
            return walk.found
        walk.event(left, right)
    if len(mine) != len(theirs):
        steps = [sum(event["kind"] == "step" for event in one) for one in (mine, theirs)]
        reported = (
            f"{steps[0]} steps, not {steps[1]}" if steps[0] != steps[1] else "other backwards"
        )
        walk.order((theirs or mine)[-1], f"the session's run makes {reported}")
        return walk.found
    walk.state()
    return walk.found


class Walk:
    """Walks both records in parallel."""

    def __init__(self, ours: RankRecord, plain: RankRecord, drift: Drift) -> None:
        self._ours, self._plain, self._drift = ours, plain, drift
        self.found = Comparison()
        self._step = 0
        self._terms = 1
        self._unit = rounding.unit()
        self._roots: set[str] = set()

    def event(self, left: dict[str, Any], right: dict[str, Any]) -> None:
        self._terms = max(self._terms, right.get("terms", 1), left.get("terms", 1))
        coarsest = [one["coarsest"] for one in (left, right) if one.get("coarsest")]
        self._unit = max([self._unit, *map(_unit, coarsest)])
        if right["kind"] == "backward":
            self._loss(left, right)
            return
        self._step = right["step"]
        self.found.steps = max(self.found.steps, self._step + 1)
        if left["rates"] != right["rates"]:
            gap = max(_relative(a, b) for a, b in zip(left["rates"], right["rates"], strict=False))
            self.add(
                "learning rate",
                f"of optimizer {right['optimizer']}",
                right,
                gap,
                rounding.of_sums(rounding.unit(), 1, self._step),
            )
        for key in TENSORS:
            self._tensors(key, left, right)

    def order(self, event: dict[str, Any], text: str) -> None:
        """Record that the sequences of events begin to differ here."""
        self._step = event.get("step", self._step)
        self.add("order", "", event, math.inf, 0.0, text)

    def state(self) -> None:
        """Compare the models at the end."""
        left, right = (one.of("state")[-1:] for one in (self._ours, self._plain))
        if left and right:
            last = {"optimizer": -1, "step": self._step, **right[0]}
            self._tensors("tensors", left[0], last)

    def add(
        self,
        kind: str,
        name: str,
        event: dict[str, Any],
        gap: float,
        allowed: float,
        text: str = "",
    ) -> None:
        optimizer = event.get("optimizer", -1)
        place = (kind, optimizer, self._step, name)
        allowed = max(allowed, self._drift.get(place, 0.0))
        self.found.places.append(Difference(kind, name, optimizer, self._step, gap, allowed, text))

    def _loss(self, left: dict[str, Any], right: dict[str, Any]) -> None:
        if left["loss"] is None or right["loss"] is None:
            return
        dtype = right["dtype"]
        step = right["number"]
        place = {"optimizer": -1}
        self._step, before = step, self._step
        allowed = rounding.of_sums(self._precision(dtype), self._terms, step)
        self.add("loss", "", place, _relative(left["loss"], right["loss"]), allowed)
        self._step = before

    def _tensors(self, key: str, left: dict[str, Any], right: dict[str, Any]) -> None:
        ours, theirs = self._ours.tensors(left[key]), self._plain.tensors(right[key])
        kind = TENSORS.get(key, "model at the end")
        largest = largest_of(theirs) if kind == "gradient" else 0.0
        for name in dict.fromkeys([*theirs, *ours]):
            stored = theirs.get(name)
            unit = self._precision("float64" if stored is None else stored.dtype)
            floor = rounding.of_empty(unit, self._terms, largest)
            found = gap(name, ours, theirs, floor)
            if found.text:
                self.add(kind, name, right, found.relative, 0.0, found.text)
            elif stored is not None:
                self._note(name, stored)
                allowed = rounding.of_sums(unit, self._terms, self._step)
                self.add(kind, name, right, found.relative, allowed)

    def _precision(self, dtype: str) -> float:
        """Return the unit roundoff of the coarser of a dtype and the compute dtype (autocast)."""
        return max(_unit(dtype), self._unit)

    def _note(self, name: str, stored: Stored) -> None:
        self._roots.add(name.split(".")[0])
        self.found.models = len(self._roots)
        if _dtype(stored.dtype).is_floating_point or _dtype(stored.dtype).is_complex:
            self.found.dtype = stored.dtype
        if stored.is_thinned and name not in self.found.thinned:
            self.found.thinned.append(name)


def _relative(a: float, b: float) -> float:
    return 0.0 if a == b else abs(a - b) / max(abs(a), abs(b))


def _place(event: dict[str, object]) -> tuple[object, ...]:
    return event["kind"], event.get("optimizer"), event.get("step", event.get("number"))


def _describe(event: dict[str, Any]) -> str:
    if event["kind"] == "backward":
        return f"backward {event['number'] + 1}"
    return f"step {event['step'] + 1} of optimizer {event['optimizer']}"


def _unit(name: str) -> float:
    return rounding.unit(_dtype(name))


def _dtype(name: str) -> torch.dtype:
    """Return the dtype of a name in a record."""
    found: torch.dtype = getattr(torch, name)
    return found
