"""Process groups beside the default one: aborted with the job, as meshes, and as a rendezvous."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torchbus.plugin import Context, DataPlace, UsageError, World

from torchbus_launch.broadcast_log import shut
from torchbus_launch.store import StoreBarrier, shared_store
from torchbus_strategy.collectives import all_gather_object
from torchbus_strategy.compat import engines_of_groups, forget_meshes, keep
from torchbus_strategy.connections import make_proven, sockets_of_groups

DATA = "dp"
"""The prefix of the names of dimensions over which the data is divided."""
ROWS = "rows"
"""The dimension over which the rows of one batch are divided."""
WORKER = "pt_gloo_runloop"
"""torch's name for the threads that run gloo's collectives; older releases give them none."""
FUTEX = {"x86_64": "202", "aarch64": "98"}
"""The number of Linux's system call in which a thread waits for another one, by machine."""
USUALLY_WITHIN_S = 2.0


def close_groups() -> None:
    """Close all groups. If a collective does not end, the engines stay until the process ends.

    Otherwise the engines are freed last and separately, without the GIL: a thread of a group may
    need the GIL to free a tensor.
    """
    with contextlib.suppress(RuntimeError):
        if dist.is_initialized():
            engines = engines_of_groups()
            if not _come_to_pause():
                keep(engines)
            dist.destroy_process_group()


def leave_groups(error: object, *_: object) -> None:
    """Leave the script's groups open, and wait until their threads have freed the last tensors.

    They need the GIL for it, and abort the process if Python ends meanwhile. With an ``error``, a
    collective may never end, so there is no wait.
    """
    if error is None:
        _come_to_pause()


def _come_to_pause() -> bool:
    """Wait for a while until no thread runs a collective. Returns whether all have ended."""
    deadline = time.monotonic() + USUALLY_WITHIN_S
    while any(map(_is_in_a_collective, Path("/proc/self/task").glob("*"))):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _is_in_a_collective(thread: Path) -> bool:
    """Whether a thread is one of gloo's, and does anything except wait for work.

    A thread waits for work without a timeout. False if the system does not report what it does.
    """
    try:
        if (thread / "comm").read_text().strip() != WORKER:
            return False
        call = (thread / "syscall").read_text().split()
    except OSError:
        return False
    number = FUTEX.get(os.uname().machine)
    waits_for_work = len(call) > 4 and call[0] == number and int(call[4], 16) == 0
    return number is not None and not waits_for_work


@contextmanager
def guarded_groups(session: Context) -> Iterator[None]:
    """Guard the process groups that are made in the block. All ranks call it.

    A rank that fails closes its connections, so that no other rank waits for it.
    """
    with sockets_of_groups(session) as sockets:
        yield
    assert session.job is not None
    session.job.on_release(partial(shut, sockets))


class Rendezvous:
    """A separate gloo group, made at the first exchange.

    Its collectives never pair with those of a rank that is elsewhere in the loop, which would abort
    gloo. The guard finds ranks that wait in different places.
    """

    def __init__(self, session: Context) -> None:
        assert session.job is not None
        self._session, self._job = session, session.job
        self._group: dist.ProcessGroup | None = None
        session.on_close.callback(self._forget)

    def wait(self, *what: object) -> None:
        """Wait until all ranks call it. ``what`` is for the message, if one of them does not."""
        self._job.wait_in(*what)
        if self._group is None:
            self._wait_for_all()
            self._group = make_proven(self._session, "gloo", "rendezvous", self._make)
        dist.all_reduce(torch.zeros(1), group=self._group)
        self._job.go_on()

    def _make(self, attempt: int) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=self._session.timeout)
        return group

    def _wait_for_all(self) -> None:
        """Wait where the guard can interrupt. Torch makes groups in native code."""
        world = self._session.world
        call = StoreBarrier(shared_store(world), "meeting", world.rank, world.world_size)
        call.say()
        self._job.wait_until(lambda _: call.is_complete(), math.inf)

    def _forget(self) -> None:
        """Release the group: a process that is forked later does not have its threads."""
        self._group = None


def arrange_ranks(session: Context, **sizes: int) -> World:
    """Let the ranks form a mesh, such as ``arrange_ranks(session, dp=2, tp=2)``.

    Along the last dimension ranks are consecutive. The data is divided over the dimensions whose
    names begin with "dp". Raises UsageError if the sizes don't fit the number of ranks.
    """
    session.world = arranged(session.world, sizes)
    return session.world


def arranged(world: World, sizes: Mapping[str, int]) -> World:
    """Return the same ranks as a mesh. Raises UsageError as ``arrange_ranks`` does."""
    size = math.prod(sizes.values())
    if size != world.world_size:
        axes = " x ".join(f"{name}={size}" for name, size in sizes.items())
        raise UsageError(
            f"a mesh of {axes} has {size} ranks, and there are {world.world_size}: change devices=,"
            " or the options that give these sizes"
        )
    part = member = 0
    for name, index in _coordinates(world.rank, sizes):
        if name.startswith(DATA):
            part = part * sizes[name] + index
        else:
            member = member * sizes[name] + index
    parts = math.prod(size for name, size in sizes.items() if name.startswith(DATA))
    place = DataPlace(part, parts)
    shape = tuple(sizes.items())
    return dataclasses.replace(world, shape=shape, data_place=place, member=member)


def _coordinates(rank: int, sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Where a rank is along each dimension."""
    below = math.prod(sizes.values())
    for name, size in sizes.items():
        below //= size
        yield name, rank // below % size


def mesh_sizes(world: World) -> dict[str, int]:
    """Return the sizes of the mesh's dimensions by name. Nothing is made or sent.

    Raises UsageError if the ranks form no mesh.
    """
    if not world.shape and world.data_place is not None:
        raise UsageError(
            "world.mesh: the ranks form no mesh, because the strategy puts them into groups"
            " that differ in size (ddp2 on nodes with different numbers of ranks). Start the same"
            " number of ranks on each node"
        )
    return dict(world.shape) or {DATA: world.world_size}


def divides_samples(world: World) -> bool:
    """Whether ranks compute with different samples: not within tensor parallel or a pipeline.

    The ranks of ``dp`` do, although they get the same batches.
    """
    sizes = dict(world.shape) or {DATA: world.world_size}
    return any(size > 1 for name, size in sizes.items() if name.startswith((DATA, ROWS)))


def offer_mesh(session: Context) -> None:
    """Let ``session.world.mesh`` make the mesh, now that there is a process group."""
    session.change_world(open_mesh=partial(_open, session))


def _open(session: Context, world: World) -> DeviceMesh:
    """Make the mesh. All ranks call it.

    Raises UsageError, on all ranks, if they expect different meshes.
    """
    sizes = mesh_sizes(world)
    reported = all_gather_object(sizes, world.world_size)
    if any(theirs != reported[0] for theirs in reported):
        rank = next(rank for rank, theirs in enumerate(reported) if theirs != reported[0])
        raise UsageError(
            f"world.mesh: rank 0 expects {reported[0]}, and rank {rank} {reported[rank]}. Start"
            " the same number of ranks on every node, with the same options on every rank"
        )
    session.on_close.callback(_forget)
    with guarded_groups(session):
        return init_device_mesh(
            world.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)
        )


def _forget() -> None:
    """Forget the meshes, because a later session may have another one of the same form."""
    if "torch.distributed.tensor" in sys.modules:
        forget_meshes()
