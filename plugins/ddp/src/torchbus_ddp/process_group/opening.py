"""The process group: made for the session, closed with it."""

from __future__ import annotations

import contextlib
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported any later, its functions' defaults would hold on to the process group for good
from torchbus.plugin import Context, LaunchError, UsageError, broadcast_object, gloo_on_loopback, random_streams, shut, sockets_opened, visible_device


def choose_backend(session: Context, backend: str | None) -> str:
    """The backend asked for, or the usual one of the device."""
    chosen = backend or ("nccl" if session.device.type == "cuda" else "gloo")
    if not dist.is_backend_available(chosen):
        raise UsageError(f"backend={chosen!r} is not in this torch build: see `torchbus doctor` for those that are")
    if chosen == "nccl" and session.device.type != "cuda":
        raise UsageError("backend='nccl' needs GPUs: use backend='gloo' on CPU")
    return chosen


def claim_device(session: Context) -> None:
    """Make this rank's GPU the only one it sees, if CUDA is not initialised yet, so that "cuda:0" means it too."""
    if session.device.type != "cuda":
        return
    if not torch.cuda.is_initialized():
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_device(session.device)
        session.on_close.callback(_restore_visible, before)
        session.change_world(device=torch.device("cuda", 0))
    torch.cuda.set_device(session.device)


def _restore_visible(before: str | None) -> None:
    if before is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = before


def open_group(session: Context, backend: str) -> None:
    """Make the default process group, unless the script has made one already."""
    if dist.is_initialized():
        return
    assert session.job is not None and session.world.store is not None
    store = session.world.shared.of_groups("torchbus")
    before = sockets_opened()
    hook = sys.excepthook
    try:
        with gloo_on_loopback(session.world.one_host):
            made = session.bus.hook.init_process_group(session=session, backend=backend, store=store, timeout=session.timeout)
            if not made:
                dist.init_process_group(backend, store=store, rank=session.rank, world_size=session.world_size, timeout=session.timeout)
    except (RuntimeError, ValueError, dist.DistError) as error:
        raise LaunchError(f"rank {session.rank}: the {backend} process group could not be made: {error}") from error
    finally:
        sys.excepthook = hook  # torch replaces it and does not put it back
    own = sockets_opened() - before
    session.job.on_release(lambda: _release(own))
    session.on_close.callback(_close)


def _release(own_sockets: set[int]) -> None:
    """End this rank's collectives. Closing the connections ends gloo's at once; NCCL has an abort of its own."""
    shut(own_sockets)
    if dist.is_initialized() and dist.get_backend() == "nccl":
        dist.distributed_c10d._abort_process_group()


def _close() -> None:
    """torch 2.4 frees a group with the GIL, and waits for its threads, of which one may want the GIL to free a tensor. So the engines
    go last, by themselves: that is without the GIL."""
    with contextlib.suppress(RuntimeError):
        if dist.is_initialized():
            engines = [group._get_backend(torch.device(kind)) for group in dist.distributed_c10d._world.pg_map for kind in group._device_types]
            dist.destroy_process_group()
            engines.clear()


def share_random_state(session: Context) -> None:
    """All ranks go on with rank 0's random numbers: an unseeded script initialises alike, and draws the same order."""
    state = broadcast_object(random_streams.read() if session.is_main else None)
    if not session.is_main:
        random_streams.write(state)


