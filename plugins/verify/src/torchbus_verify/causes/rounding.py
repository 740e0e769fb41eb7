"""Shows what rounding does to a script: a plain run in which each gradient is rounded anew.

Where a loop amplifies rounding (a sign of a gradient that is nearly zero, a threshold), this run
drifts from the plain one as far as a run with other sums may.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchbus_strategy.checks import rounding
from torchbus_verify.compare.difference import Comparison
from torchbus_verify.compare.steps import Drift
from torchbus_verify.runs.request import Change, Inside

AS_FAR = 4.0
"""One run drifts from the other in one direction of many: this much farther is still rounding."""


def disturb(terms: int) -> Change:
    """Adds to each gradient what the rounding of a sum of so many terms may."""

    def change(run: Inside) -> None:
        generator = torch.Generator().manual_seed(1)

        def rounded(number: int, parameters: dict[str, Tensor]) -> None:
            gradients = [one.grad for one in parameters.values() if one.grad is not None]
            dense = [
                one for one in gradients if one.layout is torch.strided and one.is_floating_point()
            ]
            largest = max((float(one.abs().max()) for one in dense if one.numel()), default=0.0)
            for one in dense:
                size = rounding.of_nothing(rounding.unit(one.dtype), terms, largest)
                noise = torch.rand(one.shape, generator=generator, dtype=torch.float64) * 2 - 1
                one.detach().add_((noise * size).to(one.device, one.dtype))

        run.steps.after_backward.append(rounded)

    return change


def drift(disturbed: Comparison) -> Drift:
    """How far rounding may move each place, by how far it did."""
    return {one.place: AS_FAR * one.relative for one in disturbed.places}
