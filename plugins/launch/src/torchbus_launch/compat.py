"""Private names of torch that watching the ranks needs.

All were seen in torch 2.6 to 2.13.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

OPERATORS = tuple(module.__name__ for module in (torch._ops, torch._library))
"""Modules with the innermost frames of divided tensors' collectives. Without one: AttributeError at
``import torchbus``.
"""

frames_of_threads: Callable[[], dict[int, FrameType]] = sys._current_frames
"""The innermost frame by thread. Without it: AttributeError when the ranks are launched."""


def collectives_begun(group: Any) -> int:
    """Return how many collectives a group has begun. RuntimeError if the backend doesn't count.

    Without ``_device_types``, ``_get_backend`` or ``_get_sequence_number_for_group``:
    AttributeError when a rank may hang.
    """
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:  # a backend that torch does not know, or several
        backends = {id(one): one for one in map(group._get_backend, group._device_types)}
        return sum(int(one._get_sequence_number_for_group()) for one in backends.values())


def begun() -> int | None:
    """Return how many collectives of the main process group this rank has begun.

    None without a group, or if its backend does not count them.
    """
    try:
        group: object = dist.group.WORLD
        return None if group is None else collectives_begun(group)
    except RuntimeError:
        return None


def import_compiler() -> None:
    """Import torch's compiler, as torch's first optimizer does, which takes seconds.

    Called before a fork, so that not every rank imports it. Without ``_dynamo``: ImportError at the
    fork.
    """
    import torch._dynamo  # noqa: F401


def batches_come(iterator: object) -> int | None:
    """Return how many batches have come from the workers.

    Without ``_rcvd_idx``: UsageError when the loaders' patch is installed.
    """
    return getattr(iterator, "_rcvd_idx", None)
