"""Private names of torch that accumulation uses; nothing else in this package uses one.

All were seen in 2.6 to 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch.amp import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torchbus.compat.required import require

index_sampler: Callable[[Any], Any] = attrgetter("_index_sampler")
"""The sampler that yields a loader's batches of indices.

Without it: AttributeError when the loop asks for the length of a loader.
"""

yielded: Callable[[Any], int] = attrgetter("_num_yielded")
"""The number of batches that an iterator has yielded.

Without it: AttributeError at ``s.is_last_batch``.
"""


def children(scheduler: LRScheduler) -> list[LRScheduler]:
    """Return the parts of a ``SequentialLR`` or a ``ChainedScheduler``, and else an empty list.

    Without ``_schedulers``: IndexError at the first step of a ``SequentialLR``.
    """
    return list(getattr(scheduler, "_schedulers", ()))


milestones: Callable[[Any], Any] = attrgetter("_milestones")
"""The steps at which the later parts of a ``SequentialLR`` begin.

Without it: AttributeError at its first step.
"""

STEP_COUNT = "_step_count"
"""The attribute that counts a scheduler's steps, which is not a number of the schedule.

Without it: UsageError when the numbers of a schedule are read.
"""


def require_step_count() -> None:
    """Raise UsageError where the count of steps would be mistaken for a number of the schedule."""
    require(LRScheduler, STEP_COUNT, "is distinguished from the numbers of a schedule")


def has_seen(scaler: GradScaler, optimizer: object) -> bool:
    """Whether a scaler has unscaled the gradients of an optimizer.

    Without ``_per_optimizer_states``: UsageError at the first skipped step.
    """
    name = "_per_optimizer_states"
    require(GradScaler, name, "detects that the loop scales its gradients itself")
    return id(optimizer) in getattr(scaler, name, ())
