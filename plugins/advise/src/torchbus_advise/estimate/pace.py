"""Seconds of a step, from FLOPs and bytes. An estimate: it knows nothing of kernels."""

from __future__ import annotations

from dataclasses import dataclass

from torchbus_advise.estimate.hardware import Gpu
from torchbus_advise.estimate.plans import Plan

BACKWARD_SHARE = 2 / 3
"""Of a step's computing, during which ddp sends. A sharded strategy sends in forward too."""
LEAST_STEP_S = 2e-3
"""However little there is to compute: kernels have to be launched."""


@dataclass(frozen=True)
class Pace:
    """``efficiency``: the part of the step in which the GPU computes what the script asked for."""

    step_s: float
    efficiency: float


def pace(plan: Plan, flops: float, again_flops: float, sent_bytes: int, gpu: Gpu) -> Pace:
    """``again_flops``: what checkpointing computes a second time."""
    useful_s = flops / gpu.flops_per_s(plan.precision)
    again_s = again_flops / gpu.flops_per_s(plan.precision) if plan.checkpointing else 0.0
    sending_s = sent_bytes / gpu.bytes_per_s
    hidden = 1.0 if plan.strategy.parameters else BACKWARD_SHARE
    step_s = useful_s + again_s + max(0.0, sending_s - hidden * (useful_s + again_s))
    step_s = max(step_s, LEAST_STEP_S)
    return Pace(step_s, useful_s / step_s)
