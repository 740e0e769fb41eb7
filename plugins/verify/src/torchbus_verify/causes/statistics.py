"""Takes away the statistics of the batch: batch normalisation uses its running ones, in training
too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchbus_verify.runs.request import Inside


def take_away(run: Inside) -> None:
    """From here on, in this run."""
    original = torch.nn.functional.batch_norm
    noted = False

    def batch_norm(
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        nonlocal noted
        if training and not noted:
            noted = True
            run.writer.write("taken", cause="statistics", words="batch_norm")
        channels = input.shape[1]
        mean = input.new_zeros(channels) if running_mean is None else running_mean
        var = input.new_ones(channels) if running_var is None else running_var
        return original(input, mean, var, weight, bias, False, momentum, eps)

    torch.nn.functional.batch_norm = batch_norm
