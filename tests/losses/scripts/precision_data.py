"""The data of the loops of precision.py, and what they end with."""

from __future__ import annotations

import torch

SAMPLES = 22
BATCH = 3  # the last one of an epoch is smaller


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, 3, generator=generator), torch.randn(
        SAMPLES, 1, generator=generator
    )


def values(*nets):
    return [
        value
        for net in nets
        for parameter in net.parameters()
        for value in parameter.detach().double().reshape(-1).tolist()
    ]
