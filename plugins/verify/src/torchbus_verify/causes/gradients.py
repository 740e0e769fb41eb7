"""Decomposes the gradients of the first step that differs."""

from __future__ import annotations

import math
from typing import Any

from torchbus_verify.causes import cause, weights
from torchbus_verify.causes.cause import Cause
from torchbus_verify.causes.weights import Fit
from torchbus_verify.compare.difference import Difference, distance
from torchbus_verify.record.writing import RankRecord
from torchbus_verify.variants import Laboratory

NEAR = 1e-3


class GradientMix:
    """Expresses the gradients of both runs as linear combinations of the ranks' local gradients."""

    def __init__(self, lab: Laboratory) -> None:
        self._lab = lab

    def explain(self, first: Difference, by_parts: bool) -> Cause | None:
        """Return a cause if the weights are wrong; None if not, or if that can't be decided."""
        noted = self._lab.suspects | {"weights"}
        ours, plain = self._lab.session(noted), self._lab.plain(noted)
        if ours.status or plain.status:
            return None
        number = _backward_of(first, plain.first)
        if _differ_on_one_batch(ours.ranks, plain.first, number):
            found = f"of the same batch the ranks make different gradients in backward {number + 1}"
            return cause.local_number(found, False)
        needed = weights.fit(ours.ranks, plain.first, number)
        if needed is None or not needed.fits:
            return None
        used = self._used(ours.ranks, plain.first, number)
        if used is None:
            return None
        if _near(needed.weights, used):  # the loop may have clipped both
            is_sum = by_parts and adds_losses(ours.ranks, plain.first, number)
            return cause.summed_losses(f"loss in backward {number + 1}") if is_sum else None
        where = f"gradient in backward {number + 1}"
        if by_parts and _near(needed.weights, (1.0,) * len(ours.ranks)):
            return cause.summed(where, _ratio(used))
        shares = _shares(ours.ranks, plain.first, number)
        fault = not by_parts or shares is None or _near(needed.weights, shares)
        kind = cause.averaging if fault else cause.weights
        return kind(where, _ratio(needed.weights), _ratio(used))

    def _used(
        self, ranks: list[RankRecord], plain: RankRecord, number: int
    ) -> tuple[float, ...] | None:
        """Return the weights that the session used, without the scale of clipping in both runs."""
        ours, scale = _final(ranks[0], ranks, number), _final(plain, [plain], number)
        if ours is None or scale is None or not ours.fits or not scale.fits or not scale.weights[0]:
            return None
        return tuple(weight / scale.weights[0] for weight in ours.weights)


def _backward_of(first: Difference, plain: RankRecord) -> int:
    """Return the number of the backward that made the gradient of a step."""
    if first.kind == "loss":
        return first.step
    done = 0
    for event in plain.events:
        if event["kind"] == "backward":
            done = event["number"]
        elif event["kind"] == "step" and (event["optimizer"], event["step"]) == (
            first.optimizer,
            first.step,
        ):
            break
    return done


def _final(record: RankRecord, ranks: list[RankRecord], number: int) -> Fit | None:
    """Return the gradient of the first step after a backward, as a combination of the ranks'."""
    begun = False
    for event in record.events:
        begun = begun or (event["kind"] == "backward" and event["number"] == number)
        if begun and event["kind"] == "step":
            gradients = weights.values(record, event["gradients"])
            return weights.mixture(gradients, ranks, number, weights.dtype_of_losses(record))
    return None


def _shares(ranks: list[RankRecord], plain: RankRecord, number: int) -> tuple[float, ...] | None:
    """Return the ranks' shares of the samples of a backward."""
    counts = [len(_samples_before(record, number)) for record in ranks]
    whole = len(_samples_before(plain, number))
    if not whole or sum(counts) != whole:
        return None
    return tuple(count / whole for count in counts)


def _differ_on_one_batch(ranks: list[RankRecord], plain: RankRecord, number: int) -> bool:
    """Whether every rank had the plain run's whole batch, but computed different gradients.

    This can happen for the first batch of a loader, which may be undivided.
    """
    whole = _samples_before(plain, number)
    mine = [weights.noted(record, number) for record in ranks]
    if not whole or any(_samples_before(record, number) != whole for record in ranks):
        return False
    first = mine[0]
    return first is not None and any(
        one is not None
        and any(distance(one[name], first[name]) > NEAR for name in first if name in one)
        for one in mine[1:]
    )


def _samples_before(record: RankRecord, number: int) -> list[Any]:
    """Return the last batch that was read before a backward."""
    latest: list[Any] = []
    for event in record.events:
        if event["kind"] == "batch" and event["trains"]:
            latest = event["samples"]
        elif event["kind"] == "backward" and event["number"] == number:
            break
    return latest


def adds_losses(ranks: list[RankRecord], plain: RankRecord, number: int) -> bool:
    """Whether the plain run's loss is the sum of the ranks' local losses, but not the session's."""
    mine = [record.of("backward")[number]["own"] for record in ranks]
    whole = plain.of("backward")[number]["loss"]
    read = ranks[0].of("backward")[number]["loss"]
    is_sum = None not in mine and math.isclose(sum(mine), whole, rel_tol=NEAR)
    return is_sum and not math.isclose(read, whole, rel_tol=NEAR)


def _near(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(abs(a - b) <= NEAR for a, b in zip(one, other, strict=True))


def _ratio(found: tuple[float, ...]) -> str:
    return " : ".join(f"{weight:.3f}" for weight in found)
