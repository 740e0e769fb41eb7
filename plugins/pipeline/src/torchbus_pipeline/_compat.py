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
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.nn import Module

as_plain_tensors: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunctionSubclass
"""A context in which torch ignores subclasses of Tensor.

Without it: AttributeError when the package is imported.
"""

parameters: Callable[[Module], dict[str, Any]] = attrgetter("_parameters")
"""The parameters of one module, by name. Without it: AttributeError when a model is divided."""

FOREACH = "_foreach_"
"""The prefix of the names of functions on lists of tensors.

Without it: Unsupported if a loop writes into a list with parameters that another rank has.
"""

Order = list[tuple[str, int, int]]
"""The actions of a rank in order: ("F" or "B", stage, micro-batch)."""


def interleaved_order(
    local_stages: list[int], stages: int, microbatches: int, group: dist.ProcessGroup | None
) -> Order:
    """Return this rank's actions in torch's interleaved schedule.

    ``local_stages`` are the stages of this rank. Without ``pipeline_order``: AttributeError at the
    second forward.
    """
    device = torch.device("cpu")
    made: Any = [
        PipelineStage(_NoLayers(), one, stages, device, group=group) for one in local_stages
    ]
    found: Any = ScheduleInterleaved1F1B(made, microbatches)
    return [
        ("F" if action.computation_type.name == "FORWARD" else "B", action.stage_index, index)
        for action in found.pipeline_order[dist.get_rank(group)]
        if action is not None
        and action.computation_type.name in ("FORWARD", "FULL_BACKWARD")
        and (index := action.microbatch_index) is not None
    ]


class _NoLayers(nn.Module):
    """A placeholder module for torch's stages, as the layers remain in the loop's model."""

    torchbus_internal = True
