"""The parts that ``Strategy`` is made of, for a strategy with an engine of its own."""

from __future__ import annotations

from torchbus._strategy.backward import header
from torchbus._strategy.backward.engine import Engine, Roots, run
from torchbus._strategy.backward.header import Header, Slots, first_number, make_header
from torchbus._strategy.backward.loss_counts import LossCounts
from torchbus._strategy.checks.divergence import SEED, Watch
from torchbus._strategy.checks.loss_kind import look_at_first
from torchbus._strategy.checks.renormalised import refuse_renormalised
from torchbus._strategy.checks.repeated_work import watch_replicas
from torchbus._strategy.checks.same_loss import SameLoss
from torchbus._strategy.gradients import GradientSync
from torchbus._strategy.group.opening import check_backend, join_ranks, make_group
from torchbus._strategy.options import LOSS_REDUCTIONS, Division, SyncOptions
from torchbus._strategy.parameters.assigned import Assigned
from torchbus._strategy.parameters.averaging import average, mean_over, settled
from torchbus._strategy.parameters.per_rank import OwnTensors
from torchbus._strategy.parameters.rank0_values import Buffers, copy_from_rank0
from torchbus._strategy.parameters.trained import Trained
from torchbus._strategy.reduction import AfterBackward, AllAfterBackward, Reduction, Reductions

__all__ = [
    "LOSS_REDUCTIONS",
    "SEED",
    "AfterBackward",
    "AllAfterBackward",
    "Assigned",
    "Buffers",
    "Division",
    "Engine",
    "GradientSync",
    "Header",
    "LossCounts",
    "OwnTensors",
    "Reduction",
    "Reductions",
    "Roots",
    "SameLoss",
    "Slots",
    "SyncOptions",
    "Trained",
    "Watch",
    "average",
    "check_backend",
    "copy_from_rank0",
    "first_number",
    "header",
    "join_ranks",
    "look_at_first",
    "make_group",
    "make_header",
    "mean_over",
    "refuse_renormalised",
    "run",
    "settled",
    "watch_replicas",
]
