"""The process group: made when the session starts, closed with it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

# if imported later, its functions' defaults would reference the process group forever
import torch.distributed.nn
from torchbus.plugin import Context, UsageError, expect

from torchbus_device import accelerators
from torchbus_device.devices import threads_per_rank
from torchbus_launch.relaunch import visible_device
from torchbus_strategy import random_streams
from torchbus_strategy.compat import abort_all_groups, require_abort
from torchbus_strategy.connections import make_proven
from torchbus_strategy.groups import close_groups, leave_groups, offer_mesh

VARIABLE = "TORCHBUS_BACKEND"
NCCL_LATER = timedelta(seconds=60)
"""How much later NCCL's timeout is than ``timeout_s``, after which the guard ends the job. NCCL's
watchdog first writes what each rank has done, and a group can't be aborted meanwhile.
"""


def check_backend(backend: str | None) -> str | None:
    """Return the backend that the argument or TORCHBUS_BACKEND names, or None.

    Raises UsageError for a name that no torch has. ``choose_backend`` checks what this torch has.
    """
    if backend is not None:
        expect("backend", backend, str, "the name of a torch.distributed backend")
    chosen = backend or os.environ.get(VARIABLE) or None
    names = [] if chosen is None else [part.rpartition(":")[2] for part in chosen.split(",")]
    if not {name.lower() for name in names} <= {*dist.Backend.backend_list}:
        raise UsageError(
            f"{'backend' if backend else VARIABLE}={chosen!r} names no backend of"
            " torch.distributed: see `torchbus doctor` for those that are here"
        )
    return chosen


def join_ranks(session: Context, backend: str | None) -> str:
    """Open the process group, with rank 0's random numbers on all ranks. All ranks call it.

    So an unseeded script initialises the same weights on all ranks, and draws the same order.
    Returns the backend that was chosen.
    """
    chosen = choose_backend(session, backend)
    claim_device(session)
    share_cpu(session)
    open_group(session, chosen)
    offer_mesh(session)
    random_streams.share()
    if not session.world.divides_anew:  # replicas that come and go can't be asked
        session.random.before_split = random_streams.share
    return chosen


def choose_backend(session: Context, backend: str | None) -> str:
    """Return the given backend, or else the usual one of the device.

    Raises UsageError if there is none, or if it does not serve the device.
    """
    kind = session.device.type
    chosen = backend or accelerators.backend_for(kind)
    if chosen is None:
        raise UsageError(
            f"torch.distributed has no backend for {kind}: use accelerator='cpu' for several ranks,"
            " or import the package that provides one"
        )
    if not dist.is_backend_available(chosen):
        raise UsageError(
            f"backend={chosen!r} is not in this torch build: see `torchbus doctor` for those"
            " that are"
        )
    if not accelerators.serves(chosen, kind):
        usual = accelerators.backend_for(kind)
        raise UsageError(
            f"backend={chosen!r} does not serve {kind}: use backend={usual!r}, or leave it out"
        )
    return chosen


def refuse_gloo(strategy: str, backend: str | None, kind: str) -> None:
    """Raise UsageError if gloo would have to gather or send tensors of an accelerator.

    gloo would treat their addresses as the host's, and end the process.
    """
    if kind == "cpu" or backend is None:
        return
    if accelerators.backends_by_kind(backend).get(kind, backend) == "gloo":
        raise UsageError(
            f"strategy={strategy!r} with backend={backend!r} on {kind}: gloo averages tensors of a"
            " GPU, and ends the process if it is to gather or send them. Use"
            f" backend={accelerators.backend_for(kind)!r}, which is the default, or strategy='ddp'"
        )


def claim_device(session: Context) -> None:
    """Make this rank's device the current one.

    If no device is initialised yet, it is also the only one that the rank sees, as "cuda:0".
    """
    kind = session.device.type
    if kind == "cpu":
        return
    variable = accelerators.visible_variable(kind)
    if variable and not accelerators.is_initialized(kind):
        before = os.environ.get(variable)
        os.environ[variable] = visible_device(session.device)
        session.on_close.callback(_restore_visible, variable, before)
        session.change_world(device=torch.device(kind, 0))
    accelerators.set_device(session.device)


def _restore_visible(variable: str, before: str | None) -> None:
    if before is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = before


def share_cpu(session: Context) -> None:
    """Divide the processors among the ranks of this node, unless OMP_NUM_THREADS is set."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    before = torch.get_num_threads()
    if session.world.launched_by != "fork" or session.is_main:
        torch.set_num_threads(threads_per_rank(session.world.local_world_size))
    session.on_close.callback(torch.set_num_threads, before)


def group_timeout(backend: str, timeout: timedelta) -> timedelta:
    """Return how long a collective of this backend may take, if ranks may wait ``timeout``."""
    return timeout + NCCL_LATER if "nccl" in backend else timeout


def open_group(session: Context, backend: str) -> None:
    """Make the default process group, unless the script has made one already."""
    if dist.is_initialized():
        session.on_close.push(leave_groups)
        return
    assert session.job is not None
    if backend == "nccl":
        require_abort()
    timeout = group_timeout(backend, session.timeout)

    def make(attempt: int) -> dist.ProcessGroup:
        store = session.world.shared.of_groups(f"torchbus {attempt}")
        with _excepthook_restored():
            if not session.bus.hook.init_process_group(
                session=session, backend=backend, store=store, timeout=timeout
            ):
                dist.init_process_group(
                    backend,
                    timeout=timeout,
                    store=store,
                    rank=session.rank,
                    world_size=session.world_size,
                )
        assert dist.group.WORLD is not None
        return dist.group.WORLD

    make_proven(session, backend, "torchbus", make)
    session.job.on_release(_abort_nccl)
    session.on_close.callback(close_groups)


@contextlib.contextmanager
def _excepthook_restored() -> Iterator[None]:
    """Restore ``sys.excepthook``, which torch replaces when it makes a group."""
    hook = sys.excepthook
    try:
        yield
    finally:
        sys.excepthook = hook


def _abort_nccl() -> None:
    """End NCCL's collectives; gloo's end with their connections."""
    if dist.is_initialized() and dist.get_backend() == "nccl":
        abort_all_groups()
