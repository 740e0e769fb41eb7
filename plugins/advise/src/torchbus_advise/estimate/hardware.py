"""The GPU and the links that the estimates are for. Figures of data sheets."""

from __future__ import annotations

from dataclasses import dataclass, replace

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


SHARE_OF_PEAK = 0.5
"""Of a GPU's peak FLOPs, what training reaches: an assumption."""
SHARE_OF_LINK = 0.8
"""Of a link's bandwidth in one direction, what a collective reaches: an assumption."""


@dataclass(frozen=True)
class Gpu:
    """``float32_tflops``: of matrix products as torch computes them by default, without TF32.
    ``interconnect_gb_s``: to other GPUs, both directions together, as data sheets say it."""

    name: str
    memory_gib: float
    float32_tflops: float
    bfloat16_tflops: float
    interconnect_gb_s: float

    def flops_per_s(self, precision: str) -> float:
        peak = self.float32_tflops if precision == "32" else self.bfloat16_tflops
        return peak * 1e12 * SHARE_OF_PEAK

    @property
    def bytes_per_s(self) -> float:
        """In one direction."""
        return self.interconnect_gb_s * 1e9 / 2 * SHARE_OF_LINK

    def changed(self, memory_gib: float | None, interconnect_gb_s: float | None) -> Gpu:
        return replace(
            self,
            memory_gib=self.memory_gib if memory_gib is None else memory_gib,
            interconnect_gb_s=(
                self.interconnect_gb_s if interconnect_gb_s is None else interconnect_gb_s
            ),
        )


GPUS = {
    "a100": Gpu("A100 80 GB", 80, 19.5, 312, 600),
    "h100": Gpu("H100 SXM", 80, 67, 989, 900),
    "h200": Gpu("H200 SXM", 141, 67, 989, 900),
    "v100": Gpu("V100 32 GB", 32, 15.7, 15.7, 300),
    "l4": Gpu("L4", 24, 30.3, 121, 64),
}
"""The V100 has no fast bfloat16."""
