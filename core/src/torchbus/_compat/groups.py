"""Process groups.

All were seen in 2.6 to 2.13.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from torchbus._compat.required import require

OPERATORS = tuple(module.__name__ for module in (torch._ops, torch._library))
"""Where the collectives of divided tensors end. Without one: AttributeError at
``import torchbus``.
"""


def device_types(group: Any) -> list[str]:
    """The kinds of devices whose tensors a group takes. Without ``_device_types``: AttributeError
    when ranks exchange objects.
    """
    return [torch.device(kind).type for kind in group._device_types]


def collectives_begun(group: Any) -> int:
    """RuntimeError if the backend doesn't count. Without ``_get_sequence_number_for_group``:
    AttributeError when a rank may hang.
    """
    return int(group._get_sequence_number_for_group())


def require_abort() -> None:
    """Raise UsageError where NCCL's collectives can't be ended. It can't wait: whoever ends them
    goes on after errors.
    """
    need = "ends NCCL's collectives when a rank fails"
    require(dist.distributed_c10d, "_abort_process_group", need)


def abort_all_groups() -> None:
    """Without ``_abort_process_group``: see ``require_abort``."""
    dist.distributed_c10d._abort_process_group()


def engines_of_groups() -> list[Any]:
    """What runs the collectives of each group. Without ``_world``, ``_get_backend`` or
    ``_device_types``: AttributeError at the end of the session.
    """
    return [
        group._get_backend(torch.device(kind))
        for group in dist.distributed_c10d._world.pg_map
        for kind in group._device_types
    ]
