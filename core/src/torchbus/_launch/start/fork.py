"""Start the other local ranks by fork: the block alone runs in each of them."""

from __future__ import annotations

import gc
import math
import os

import torch

from torchbus._launch.job import Job
from torchbus._launch.join.nodes import find_nodes
from torchbus._launch.request import Request
from torchbus._launch.start.children import Child, error_file, standard_input
from torchbus._launch.start.cuda_use import first_use, is_lost_in_a_fork
from torchbus._launch.start.forking import fork, write_to_no_file_of_the_parent
from torchbus._launch.start.relaunch import wait_until_joined
from torchbus._launch.store.roll_call import RollCall
from torchbus.errors import UsageError

JOINS_WITHIN_S = 60.0
LATE = (
    "a rank that was forked a minute ago has not begun: a lock that another thread of this process held at that moment is held for ever there. "
    "End other threads before the block, or use launch='script'"
)


def start(request: Request) -> Job:
    """Returns in every rank: in this process as local rank 0, and in each forked one.

    Refused where CUDA was used, which does not survive a fork.
    """
    if is_lost_in_a_fork(request.devices.kind):
        raise UsageError(
            'launch="fork", but CUDA is already initialised in this process: move the first .cuda(), .to("cuda") or '
            f"torch.cuda.is_available() into the block{first_use()}. CUDA does not survive a fork; a notebook needs a new kernel"
        )
    nodes = find_nodes(request)
    store = nodes.open_store(request)
    children: list[Child] = []
    parent_pid = os.getpid()
    # A process group of an earlier session that is garbage by now waits for its threads when it is collected: here it has them.
    gc.collect()
    for local_rank in range(1, nodes.local_world_size):
        errors = error_file()
        pid = fork()
        if pid == 0:
            # The parent may have used several OpenMP threads, which the child does not have: without this line its
            # first parallel region waits for them for ever.
            torch.set_num_threads(1)
            write_to_no_file_of_the_parent()
            if not request.print_all_ranks:
                _silence(errors.fileno())
            own = store.connection(request.timeout)
            world = nodes.world(local_rank, request, own, "fork")
            RollCall(own, "joined", world.rank, world.world_size).say()
            return Job(world, request, ends_with_block=True, forked=True, parent_pid=parent_pid, keep=store)
        children.append(Child(nodes.first_rank + local_rank, pid, None, errors))
    world = nodes.world(0, request, store, "fork")
    wait_until_joined(store, world, children, JOINS_WITHIN_S if nodes.num_nodes == 1 else math.inf, LATE)
    return Job(world, request, children=children)


def _silence(error_fd: int) -> None:
    for target, source in ((0, standard_input()), (1, os.open(os.devnull, os.O_WRONLY))):
        os.dup2(source, target)
        os.close(source)
    os.dup2(error_fd, 2)
