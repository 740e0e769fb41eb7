"""Rank 0 recomputes the gradients of all ranks, and compares.

The session's gradients are compared twice, tensor by tensor: first with the mean of the ranks'
local gradients, which does not come from the session's reduction, and then with gradients that rank
0 computes from the ranks' inputs. The second comparison leaves out parameters that a loss reaches
outside of any model's forward."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torchbus.plugin import Context, warn

from torchbus_strategy.checks import rounding
from torchbus_strategy.collectives import all_gather_object
from torchbus_strategy.loss.weights import LossWeights
from torchbus_verify.compare.difference import distance
from torchbus_verify.watch.calls import CallRecorder, gradients

Gradients = dict[str, Tensor]
SHOWN = 3
NEAR = 1e-3


@dataclass
class Findings:
    """Findings of all checks of a session.

    ``is_sum`` is True if the loss is a sum over samples. ``losses`` decides that if the user has
    not.
    """

    is_sum: bool = False
    losses: LossWeights | None = None
    checks: int = 0
    last: int = 0
    largest: float = 0.0
    drifts: int = 0
    left_out: list[str] = field(default_factory=list)

    def leave_out(self, why: str) -> None:
        if why not in self.left_out:
            self.left_out.append(why)

    def lines(self, every: int) -> list[str]:
        """Return the summary for ``explain``."""
        seen = (
            f"{self.checks} backwards so far, the last in step {self.last}; {self.drifts} drifted;"
            f" largest difference {self.largest:.0e}"
            if self.checks
            else "none so far"
        )
        lines = [f"every {every} steps, rank 0 computes the gradients of all ranks: {seen}"]
        return lines + [f"not checked: {why}" for why in self.left_out[:SHOWN]]

    def record(self, step: int, *judgements: Judgement) -> None:
        self.checks, self.last = self.checks + 1, step
        self.largest = max([self.largest, *(one.largest for one in judgements)])

    def warn(self, text: str) -> None:
        """Report a drift, on rank 0."""
        self.drifts += 1
        warn(text)


@dataclass(frozen=True)
class Off:
    """A wrong gradient. ``factor`` is its uniform scale error, or NaN if it has another error."""

    name: str
    relative: float
    factor: float


@dataclass
class Judgement:
    """Tolerances for the gradients of one backward.

    ``unit`` is the coarsest unit roundoff, ``terms`` the number of terms in sums, and ``value`` the
    largest element of any gradient.
    """

    unit: float
    terms: int
    value: float
    largest: float = 0.0
    beyond: list[Off] = field(default_factory=list)

    @property
    def allowed(self) -> float:
        """The difference that rounding explains."""
        return rounding.of_sums(self.unit, self.terms)

    @property
    def floor(self) -> float:
        """The possible rounding residue of a gradient that is zero."""
        return rounding.of_empty(self.unit, self.terms, self.value)

    def take(self, name: str, found: Tensor, wanted: Tensor) -> None:
        gap = distance(found.flatten(), wanted.flatten(), self.floor)
        self.largest = max(self.largest, gap)
        if not gap <= self.allowed:
            self.beyond.append(Off(name, gap, _factor(found, wanted)))

    def describe(self) -> str:
        """Describe the first wrong tensor, its error, and the number of others."""
        first, others = self.beyond[0], len(self.beyond) - 1
        times = "" if math.isnan(first.factor) else f", being {first.factor:.3g} times as large"
        more = f", and {others} other tensors too" * bool(others)
        return (
            f"the gradient of {first.name} differs by {first.relative:.1g}{times}{more} (rounding"
            f" explains {self.allowed:.0e})"
        )


def _factor(found: Tensor, wanted: Tensor) -> float:
    """Return the factor by which all of a gradient is multiplied; NaN for a different gradient."""
    a, b = found.flatten(), wanted.flatten()
    size = float(b.dot(b))
    factor = float(a.dot(b)) / size if size else math.nan
    return factor if float((a - factor * b).norm()) <= NEAR * float(a.norm()) else math.nan


DRIFTED = (
    "verify_every: in step {}, {}. The session does not apply the mean of the ranks' gradients: a"
    " plugin changes them, or the ranks did not agree. Run torchbus verify on the script"
)
MADE_OTHERWISE = (
    "verify_every: in step {}, {} from what rank 0 computes of the same inputs{}. The session has"
    " averaged the ranks' gradients as it should, so a rank computes differently: look at"
    " its hardware and software"
)


@dataclass
class Noted:
    """The data of one backward on one rank.

    ``held`` are the parameters by name, ``found`` their gradients after the session's reduction,
    and ``local`` those of the rank's loss. ``weight`` is that of the rank's loss.
    """

    held: Gradients
    found: Gradients
    local: Gradients
    weight: float
    calls: CallRecorder


def compare(session: Context, findings: Findings, step: int, noted: Noted) -> None:
    """Run the check. All ranks call it in the same backward."""
    reported: list[RankReport] = all_gather_object(_report_of(noted), session.world_size)
    total = sum(one.weight for one in reported)
    if not total > 0:  # NaN, too
        return findings.leave_out("a backward that does not start from one loss")
    made = MadeAgain(reported, noted.local, noted.held, noted.calls) if session.is_main else None
    scale = 1.0 / (session.world_size if findings.is_sum else total)
    mean, alone = (_judgement(noted, reported) for _ in range(2))
    for name, parameter in noted.held.items():
        whole = session.reduce(_wide(noted.local.get(name), parameter), "sum") * scale
        found = noted.found.get(name)
        if made is None or found is None:
            continue
        mean.take(name, _wide(found, parameter), whole)
        if made.reproduces(name, mean):
            alone.take(name, _wide(found, parameter), made.whole[name].double() * scale)
    if made is not None:
        _report(findings, step, mean, alone, made)


def _report(
    findings: Findings, step: int, mean: Judgement, alone: Judgement, made: MadeAgain
) -> None:
    findings.record(step, mean, alone)
    if made.cannot:
        findings.leave_out(f"the gradients of other ranks by rank 0: {made.cannot}")
    if mean.beyond:
        findings.warn(DRIFTED.format(step, mean.describe()))
    elif alone.beyond:
        rank = made.odd_rank(alone.beyond[0].name, alone.allowed)
        where = "" if rank is None else f" (the part of rank {rank})"
        findings.warn(MADE_OTHERWISE.format(step, alone.describe(), where))


def _report_of(noted: Noted) -> RankReport:
    norms = {name: float(one.double().norm()) for name, one in noted.local.items()}
    calls: bytes | str = noted.calls.cannot
    if not calls:
        try:
            calls = pickle.dumps(noted.calls.of_backward())
        except Exception as error:
            calls = f"the inputs of a model can't be sent ({error})"
    return RankReport(noted.weight, noted.calls.terms, norms, calls)


def _judgement(noted: Noted, reported: list[RankReport]) -> Judgement:
    """Return a judgement for sums over all elements of the ranks' inputs."""
    kinds = [*noted.calls.autocast, *(one.dtype for one in noted.found.values())]
    coarsest = max((rounding.unit(one) for one in kinds), default=0.0)
    sizes = [float(one.abs().max()) for one in noted.found.values() if one.numel()]
    terms = len(reported) * max(one.terms for one in reported)
    return Judgement(coarsest, terms, max(sizes, default=0.0))


def _wide(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """Convert to float64; None becomes zeros."""
    if gradient is None:
        return torch.zeros_like(parameter, dtype=torch.float64)
    return gradient.double()


@dataclass
class RankReport:
    """A rank's message.

    ``norms`` are those of its gradients. ``calls`` are pickled, or a text says why they can't be
    repeated.
    """

    weight: float
    terms: int
    norms: dict[str, float]
    calls: bytes | str


class MadeAgain:
    """The gradients that rank 0 has recomputed.

    ``whole`` is the sum over ranks. ``cannot`` says why it was not computed, or is "".
    """

    def __init__(
        self, reported: list[RankReport], local: Gradients, held: Gradients, calls: CallRecorder
    ) -> None:
        self.whole: Gradients = {}
        self.cannot = next((one.calls for one in reported if isinstance(one.calls, str)), "")
        self._reports, self._local = reported, local
        self._first: Gradients = {}
        self._norms: list[dict[str, float]] = []
        if self.cannot:
            return
        try:
            self._make(calls, {id(one): name for name, one in held.items()})
        except Exception as error:  # a forward may do anything; the loop must continue
            self.cannot = f"{type(error).__name__}: {error}"

    def _make(self, calls: CallRecorder, names: dict[int, str]) -> None:
        for rank, reported in enumerate(self._reports):
            assert isinstance(reported.calls, bytes)
            made = gradients(pickle.loads(reported.calls), calls.modules, names)
            if not rank:
                self._first = dict(made)
            self._norms.append({name: float(one.double().norm()) for name, one in made.items()})
            for name, one in made.items():
                self.whole[name] = self.whole[name] + one if name in self.whole else one

    def reproduces(self, name: str, judgement: Judgement) -> bool:
        """Whether rank 0 can reproduce its own gradient.

        It can't for a parameter that the loss reaches outside of a forward.
        """
        if name not in self._first or name not in self._local:
            return False
        gap = distance(self._first[name].flatten(), self._local[name].flatten(), judgement.floor)
        return gap <= judgement.allowed

    def odd_rank(self, name: str, allowed: float) -> int | None:
        """Return the rank whose gradient differs from the one that rank 0 recomputes."""
        for rank, (reported, made) in enumerate(zip(self._reports, self._norms, strict=True)):
            theirs, ours = reported.norms.get(name, 0.0), made.get(name, 0.0)
            if not abs(theirs - ours) <= allowed * max(theirs, ours):
                return rank
        return None
