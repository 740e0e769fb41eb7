"""``launch="fork"``: the ranks are forked where the block begins."""

from __future__ import annotations

import gc
import math
import os

import torch
from torchbus.errors import UsageError
from torchbus.world import World

from torchbus_device import accelerators
from torchbus_launch import compat, garbage
from torchbus_launch.children import Child, error_file, standard_input
from torchbus_launch.choice import (
    count_devices_for_backward,
    first_use,
    fork,
    is_lost_in_a_fork,
    write_to_no_file_of_the_parent,
)
from torchbus_launch.job import Job
from torchbus_launch.joining import find_nodes
from torchbus_launch.relaunch import wait_until_joined
from torchbus_launch.request import LaunchRequest
from torchbus_launch.store import SealedStore, StoreBarrier, shared_store
from torchbus_launch.threads import has_backward_threads

JOINS_WITHIN_S = 60.0
LATE = (
    "a rank that was forked a minute ago has not begun: a lock that another thread of this process"
    " held at that moment is held for ever there. End other threads before the block, or use"
    " launch='script'"
)

BACKWARD_BEFORE = (
    'launch="fork", but this process has called backward() while torch sees an accelerator: it then'
    " has threads that a forked rank lacks. Move the first backward() into the block, or use"
    " launch='script'"
)


def start(request: LaunchRequest) -> Job:
    """Fork the other local ranks, and return the job in every rank; this process is local rank 0.

    Raises UsageError if what this process has begun does not survive a fork.
    """
    _refuse_what_is_lost(request.devices.kind)
    if request.devices.count > 1:
        compat.import_compiler()
    nodes = find_nodes(request)
    store = nodes.open_store(request)
    children: list[Child] = []
    parent_pid = os.getpid()
    # Collecting a process group of an earlier session joins its threads, which only the parent has.
    gc.collect()
    garbage.freeze()
    for local_rank in range(1, nodes.local_world_size):
        errors = error_file()
        pid = fork()
        if pid == 0:
            mine = _become_a_rank(request, store, errors.fileno())
            errors.close()
            for sibling in children:
                sibling.close()
            world = nodes.world(local_rank, request, mine, "fork")
            return _join(world, request, parent_pid, store)
        children.append(Child(nodes.first_rank + local_rank, pid, None, errors))
    count_devices_for_backward()
    world = nodes.world(0, request, store, "fork")
    try:
        wait_until_joined(
            store, world, children, JOINS_WITHIN_S if nodes.num_nodes == 1 else math.inf, LATE
        )
    except BaseException:
        garbage.thaw()
        raise
    return Job(world, request, children=children)


def _join(world: World, request: LaunchRequest, parent_pid: int, keep: SealedStore) -> Job:
    StoreBarrier(shared_store(world), "joined", world.rank, world.world_size).say()
    return Job(world, request, ends_with_block=True, forked=True, parent_pid=parent_pid, keep=keep)


def _become_a_rank(request: LaunchRequest, store: SealedStore, error_fd: int) -> SealedStore:
    """Release the parent's connections and threads, and connect to the store again."""
    # The child lacks the parent's OpenMP threads. Without this line, its first parallel region
    # would wait for them forever.
    torch.set_num_threads(1)
    write_to_no_file_of_the_parent()
    if not request.print_all_ranks:
        _silence(error_fd)
    return store.connection(request.timeout)


def _refuse_what_is_lost(kind: str) -> None:
    if is_lost_in_a_fork(kind):
        raise UsageError(_was_used(kind))
    if has_backward_threads():
        raise UsageError(BACKWARD_BEFORE)


def _was_used(kind: str) -> str:
    kind = kind if kind != "cpu" else accelerators.current() or "cuda"
    name = "CUDA" if kind == "cuda" else kind
    return (
        f'launch="fork", but {name} is already initialised in this process: move the first'
        f' .{kind}(), .to("{kind}") or torch.{kind}.is_available() into the'
        f" block{first_use(kind)}. {name} does not survive a fork; a notebook needs a new kernel"
    )


def _silence(error_fd: int) -> None:
    for target, source in ((0, standard_input()), (1, os.open(os.devnull, os.O_WRONLY))):
        os.dup2(source, target)
        os.close(source)
    os.dup2(error_fd, 2)
