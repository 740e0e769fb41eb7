"""Rank 0 computes the gradients of all ranks by itself, and compares.

It compares twice, tensor by tensor. First with the mean of the ranks' own gradients, which does not
come from the session's reduction. Then with gradients that rank 0 makes of the ranks' inputs.
Parameters that a loss reaches outside of any model's forward are left out there.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import torch
from torch import Tensor
from torchbus.plugin import Context

from torchbus_strategy.checks import rounding
from torchbus_strategy.collectives import all_gather_object
from torchbus_verify.watch.calls import Calls
from torchbus_verify.watch.findings import Findings, Gradients, Judgement
from torchbus_verify.watch.made_again import MadeAgain, Told

DRIFTED = (
    "verify_every: in step {}, {}. The session does not apply the mean of the ranks' gradients: a"
    " plugin changes them, or the ranks did not agree. Run torchbus verify on the script"
)
MADE_OTHERWISE = (
    "verify_every: in step {}, {} from what rank 0 computes of the same inputs{}. The session has"
    " averaged the ranks' gradients as it should, so a rank computes otherwise: look at its"
    " hardware and software"
)


@dataclass
class Noted:
    """Of one backward, on one rank. ``found``: what the session has made of the gradients."""

    held: Gradients
    found: Gradients
    own: Gradients
    weight: float
    calls: Calls


def compare(session: Context, findings: Findings, step: int, noted: Noted) -> None:
    """All ranks call it in the same backward."""
    told: list[Told] = all_gather_object(_told(noted), session.world_size)
    total = sum(one.weight for one in told)
    if not total > 0:  # NaN, too
        return findings.leave_out("a backward that does not start from one loss")
    made = MadeAgain(told, noted.own, noted.held, noted.calls) if session.is_main else None
    scale = 1.0 / (session.world_size if findings.is_sum else total)
    mean, alone = (_judgement(noted, told) for _ in range(2))
    for name, parameter in noted.held.items():
        whole = session.reduce(_wide(noted.own.get(name), parameter), "sum") * scale
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
    findings.took(step, mean, alone)
    if made.cannot:
        findings.leave_out(f"the gradients of other ranks by rank 0: {made.cannot}")
    if mean.beyond:
        findings.tell(DRIFTED.format(step, mean.words()))
    elif alone.beyond:
        rank = made.odd_rank(alone.beyond[0].name, alone.allowed)
        where = "" if rank is None else f" (the part of rank {rank})"
        findings.tell(MADE_OTHERWISE.format(step, alone.words(), where))


def _told(noted: Noted) -> Told:
    norms = {name: float(one.double().norm()) for name, one in noted.own.items()}
    calls: bytes | str = noted.calls.cannot
    if not calls:
        try:
            calls = pickle.dumps(noted.calls.of_backward())
        except Exception as error:
            calls = f"the inputs of a model can't be sent ({error})"
    return Told(noted.weight, noted.calls.terms, norms, calls)


def _judgement(noted: Noted, told: list[Told]) -> Judgement:
    """Sums have so many terms as all ranks' inputs have numbers."""
    kinds = [*noted.calls.autocast, *(one.dtype for one in noted.found.values())]
    coarsest = max((rounding.unit(one) for one in kinds), default=0.0)
    sizes = [float(one.abs().max()) for one in noted.found.values() if one.numel()]
    terms = len(told) * max(one.terms for one in told)
    return Judgement(coarsest, terms, max(sizes, default=0.0))


def _wide(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """In double precision; nothing is zeros."""
    if gradient is None:
        return torch.zeros_like(parameter, dtype=torch.float64)
    return gradient.double()
