"""Hooks into when torch's ``fully_shard`` gathers whole parameters, and when it frees them.

All were seen in 2.13. Without one of them: AttributeError by its name, when a model computes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torch import nn
from torch.nn import Module

from torchbus_sharded._compat.fsdp2 import Group, Pair, groups_in, unsharded


def gathered_now(group: Group) -> list[tuple[Pair, nn.Parameter]]:
    """Yield the parameters with their whole tensors; nothing while they are not gathered."""
    gathered = [pair for pair in group.fsdp_params if pair.sharded_state.name == "UNSHARDED"]
    found = [(pair, unsharded(pair)) for pair in gathered]
    return [(pair, whole) for pair, whole in found if whole is not None]


def is_in_forward(group: Group) -> bool:
    """Whether its unit is at the end of a forward, for which it was gathered."""
    return bool(group._training_state.name == "FORWARD")


def call_before_reshard(group: Group, call: Callable[[Group], None]) -> Callable[[], None]:
    """Call a function before a group's whole parameters are freed.

    Returns a function that undoes it.

    The engine reshards at the end of a forward and of a backward, in compiled models as well.
    """
    reference = weakref.ref(group)

    def reshard() -> None:
        alive = reference()
        if alive is not None:
            call(alive)
            type(alive).reshard(alive)

    def undo() -> None:
        alive = reference()
        if alive is not None:
            del alive.reshard

    group.reshard = reshard  # type: ignore[method-assign]
    return undo


def gather_after_writes(group: Group) -> None:
    """Let later gathers wait for the writes that are queued on the device.

    Torch's engine waits at the beginning of a forward only.
    """
    context = group.comm_ctx
    context.all_gather_copy_in_stream.wait_stream(context.device_handle.current_stream())


def let_go_of_early(module: Module) -> None:
    """Drop prefetched parameters that were not used, because their values are stale.

    Its unit is gathered again.
    """
    for group in groups_in(module):
        if group._all_gather_result is not None:
            work = group._all_gather_result.all_gather_work
            if work is not None:
                work.wait()
            group._all_gather_result = None
