"""Finds the weights with which the plain run's gradient is a mean of the ranks' local gradients.

Each rank records the gradient of its local loss before anything is averaged. If some weights yield
the plain gradient, the session's weights are wrong; if none do, the loss of a batch is not a mean
over its parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchbus_strategy.checks import rounding
from torchbus_verify.record.writing import Event, RankRecord
from torchbus_verify.runs.inside import Inside

Gradient = dict[str, Tensor]
CLEAR = 1e3
"""The factor by which a residual must exceed rounding to count as a difference."""


@dataclass(frozen=True)
class Fit:
    """A weighted mean of the ranks' gradients.

    ``weights`` are those of the ranks. ``fits`` is True if they yield the plain run's gradient.
    """

    weights: tuple[float, ...]
    fits: bool


def note(run: Inside) -> None:
    """Records the gradient of this rank's local loss in every backward."""

    def before(number: int, loss: Tensor, parameters: dict[str, Tensor]) -> None:
        if loss.numel() != 1 or not loss.requires_grad or not parameters:
            return
        try:
            found = torch.autograd.grad(
                loss, list(parameters.values()), retain_graph=True, allow_unused=True
            )
        except RuntimeError:  # a graph that can be walked only once
            return
        named = {name: one for name, one in zip(parameters, found, strict=True) if one is not None}
        run.writer.write("own gradient", number=number, tensors=mine.tensors(named))

    mine = run.writer.with_tensors()
    run.steps.before_backward.append(before)


def fit(ranks: list[RankRecord], plain: RankRecord, number: int) -> Fit | None:
    """Fit the plain run's gradient of one backward; None if a rank has not recorded its own."""
    target = noted(plain, number)
    return None if target is None else mixture(target, ranks, number, dtype_of_losses(plain))


def mixture(
    target: Gradient, ranks: list[RankRecord], number: int, dtype: torch.dtype = torch.float64
) -> Fit | None:
    """Return a gradient as a linear combination of the ranks' local ones of one backward."""
    found = [noted(record, number) for record in ranks]
    ours = [one for one in found if one is not None]
    names = [
        name
        for name in target
        if all(name in one and one[name].shape == target[name].shape for one in ours)
    ]
    if len(ours) < len(ranks) or not names:
        return None
    wanted = torch.cat([target[name].double() for name in names])
    columns = torch.stack([torch.cat([one[name].double() for name in names]) for one in ours], 1)
    found_weights = torch.linalg.lstsq(columns, wanted[:, None], driver="gelsd").solution[:, 0]
    enough = wanted.numel() > len(ours)  # fewer numbers always fit some mixture
    gap = float((columns @ found_weights - wanted).norm() / wanted.norm().clamp(min=1e-300))
    near = gap <= CLEAR * rounding.of_sums(rounding.unit(dtype), 1)
    return Fit(tuple(found_weights.tolist()), near and enough)


def noted(record: RankRecord, number: int) -> Gradient | None:
    """Return a rank's local gradient of one backward."""
    for event in record.of("own gradient"):
        if event["number"] == number:
            return values(record, event["tensors"])
    return None


def values(record: RankRecord, described: Event) -> Gradient:
    """Return the tensors of an event."""
    return {
        name: one.values() for name, one in record.tensors(described).items() if one is not None
    }


def dtype_of_losses(record: RankRecord) -> torch.dtype:
    kinds = [event["dtype"] for event in record.of("backward") if event["dtype"]]
    found: torch.dtype = getattr(torch, kinds[0]) if kinds else torch.float32
    return found
