"""The search for causes: removes suspects one kind at a time until the difference disappears."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbus_strategy.checks import rounding
from torchbus_strategy.loss import messages
from torchbus_verify.causes import cause
from torchbus_verify.causes.cause import Cause
from torchbus_verify.causes.gradients import GradientMix
from torchbus_verify.compare.difference import Comparison, Difference
from torchbus_verify.compare.steps import Drift
from torchbus_verify.runs.inside import Change, Inside
from torchbus_verify.runs.run import EndedRun
from torchbus_verify.variants import WHOLE_BATCHES, Laboratory

ASKED = {
    messages.MAY_BE_NONE: cause.nothing_to_count,
    messages.TIMES_CONSTANT: cause.beside_means,
}


class Search:
    """The search of one verification whose runs differ."""

    def __init__(self, lab: Laboratory) -> None:
        self._lab = lab
        self._whole = lab.request.options.get("strategy") == "dp"

    def causes(self, first: Difference) -> list[Cause]:
        """Return the causes; at least one."""
        removed = self._removed()
        without = self._lab.compare(self._lab.suspects)
        found: list[Cause] = []
        if without is not None and removed and not without.beyond():
            return [self._chance(name) for name in self._needed(removed)]
        if without is not None and without.beyond() and self._moved(first, without, removed):
            found += [self._chance(name) for name in self._needed(removed, without)]
        remaining = first if without is None or not without.beyond() else without.beyond()[0]
        return [*found, *self._of_the_pause(remaining)]

    def _removed(self) -> dict[str, str]:
        """Return the suspects that can be removed, each with a description."""
        runs = [self._lab.plain(self._lab.suspects), self._lab.session(self._lab.suspects)]
        return {event["cause"]: event["words"] for run in runs for event in run.first.of("taken")}

    def _moved(self, first: Difference, without: Comparison, removed: dict[str, str]) -> bool:
        """Whether the difference appears later when all suspects are removed."""
        return bool(removed) and without.beyond()[0].step > first.step

    def _needed(self, removed: dict[str, str], goal: Comparison | None = None) -> list[str]:
        """Return the suspects that bring the difference back, or all if no single one does."""
        if len(removed) == 1:
            return list(removed)
        needed = [name for name in removed if self._matters(frozenset(removed) - {name}, goal)]
        return needed or list(removed)

    def _matters(self, others: frozenset[str], goal: Comparison | None) -> bool:
        found = self._lab.compare(others)
        if found is None:
            return True
        beyond = found.beyond()
        return bool(beyond) and (goal is None or beyond[0].step < goal.beyond()[0].step)

    def _chance(self, name: str) -> Cause:
        detail = self._removed()[name]
        if name in ("draws", "streams"):
            return cause.draws(detail)
        return cause.statistics() if name == "statistics" else cause.augmentation(detail)

    def _of_the_pause(self, first: Difference) -> list[Cause]:
        """Return the cause of a difference that draws and statistics do not explain.

        The cause is the division of batches, or an error.
        """
        where = describe(first)
        by_parts = not self._whole and self._same(self._lab.suspects, **WHOLE_BATCHES)
        warned = self._warned(where) if by_parts else None
        if warned is not None:
            return [warned]
        if first.kind in ("gradient", "loss", "parameter", "model at the end", "order"):
            fit = GradientMix(self._lab).explain(first, by_parts)
            if fit is not None:
                return [fit]
        if not by_parts:
            return [cause.unexplained(where, first.kind)]
        return [self._in_parts(first, where)]

    def _warned(self, where: str) -> Cause | None:
        """Return the cause of which the session has warned; the numbers alone don't show it."""
        said = self._lab.session().stderr
        found = [make for text, make in ASKED.items() if text.split("{", 1)[0] in said]
        return found[0](where) if found else None

    def _in_parts(self, first: Difference, where: str) -> Cause:
        if first.kind == "buffer":
            return cause.buffers(first.name)
        if first.kind == "learning rate":
            return cause.local_number(
                f"{where}: it was decided by a number of the rank's own part of the batch", False
            )
        if first.kind == "order" and not self._lab.session().ranks[0].of("step"):
            return cause.skipped(where)
        by_dp = self._same(self._lab.suspects, strategy="dp")
        return (
            cause.between_samples(where, by_dp)
            if first.kind in ("gradient", "loss")
            else cause.divided(where)
        )

    def _same(self, removed: frozenset[str], **options: object) -> bool:
        ours: EndedRun = self._lab.session(removed, **options)
        plain = self._lab.plain(removed)
        return not ours.status and not self._lab.compared(ours, plain).beyond()


def describe(one: Difference) -> str:
    """Describe a difference: its place and size."""
    place = f"step {one.step + 1}" if one.kind != "loss" else f"backward {one.step + 1}"
    what = (
        f"{one.kind} of {one.name}"
        if one.name and one.kind not in ("learning rate", "model at the end")
        else one.kind
    )
    if one.kind == "learning rate":
        what = f"learning rate {one.name}"
    if one.kind == "model at the end":
        what = f"{one.name} at the end"
    size = one.words or f"differs by {one.relative:.1g}"
    return f"{what} in {place}: {size}" if one.words else f"{what} in {place} {size}"


AS_FAR = 4.0
"""The factor by which runs may drift farther apart than rounding moved one run: directions vary."""


def disturb(terms: int) -> Change:
    """Return a change that perturbs each gradient by the rounding error of ``terms`` terms."""

    def change(run: Inside) -> None:
        generator = torch.Generator().manual_seed(1)

        def rounded(number: int, parameters: dict[str, Tensor]) -> None:
            gradients = [one.grad for one in parameters.values() if one.grad is not None]
            dense = [
                one for one in gradients if one.layout is torch.strided and one.is_floating_point()
            ]
            largest = max((float(one.abs().max()) for one in dense if one.numel()), default=0.0)
            for one in dense:
                size = rounding.of_empty(rounding.unit(one.dtype), terms, largest)
                noise = torch.rand(one.shape, generator=generator, dtype=torch.float64) * 2 - 1
                one.detach().add_((noise * size).to(one.device, one.dtype))

        run.steps.after_backward.append(rounded)

    return change


def drift(disturbed: Comparison) -> Drift:
    """Return the tolerance of each place: how far rounding moved it."""
    return {one.place: AS_FAR * one.relative for one in disturbed.places}
