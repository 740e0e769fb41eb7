"""Private names of torch that the pipeline uses; nothing else in this package uses one.

All were seen in 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn import Module

as_plain_tensors: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunctionSubclass
"""Without it: AttributeError when the package is imported."""

parameters: Callable[[Module], dict[str, Any]] = attrgetter("_parameters")
buffers: Callable[[Module], dict[str, Tensor | None]] = attrgetter("_buffers")
"""Of one module, by name. Without one of the two: AttributeError when a model is divided."""

is_view: Callable[[Tensor], bool] = Tensor._is_view
"""Without it: AttributeError when the package is imported."""

Order = list[tuple[str, int, int]]
"""What a rank computes: ("F" or "B", stage, micro-batch), one after the other."""

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def order_of(
    schedule: str, own: list[int], stages: int, microbatches: int, group: dist.ProcessGroup | None
) -> Order:
    """What torch's schedule lets this rank compute, which has the stages ``own``.

    Without ``pipeline_order``: AttributeError at the first forward.
    """
    made = [
        PipelineStage(_NoLayers(), index, stages, torch.device("cpu"), group=group) for index in own
    ]
    found: Any = (
        ScheduleInterleaved1F1B(made, microbatches)
        if len(own) > 1
        else SCHEDULES[schedule](made[0], microbatches)
    )
    rank = dist.get_rank(group)
    return [
        ("F" if action.computation_type.name == "FORWARD" else "B", action.stage_index, index)
        for action in found.pipeline_order[rank]
        if action is not None
        and action.computation_type.name in ("FORWARD", "FULL_BACKWARD")
        and (index := action.microbatch_index) is not None
    ]


class _NoLayers(nn.Module):
    """What torch's stages hold here: the layers stay in the loop's model."""

    torchbus_internal = True
