"""The strategy ``horovod``: gradients are averaged by Horovod's all-reduce."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal

from torchbus.plugin import Context, LaunchError, Unsupported, UsageError, World, expect, hookimpl

from torchbus_horovod import _compat
from torchbus_horovod.reductions import Compression, Sets
from torchbus_launch.relaunch import environment_variables
from torchbus_strategy.groups import guarded_groups
from torchbus_strategy.parameters import trained as strategy_trained
from torchbus_strategy.strategy import Strategy

LOOPBACK = "127.0.0.1"
SILENCE_S = 30
"""Horovod's default timeout. Its threads communicate in every cycle, even while loops wait."""
CHOSEN = ("HOROVOD_GLOO_TIMEOUT_SECONDS", "HOROVOD_GLOO_IFACE")
"""Variables whose values from the user or from horovodrun take precedence."""
INTERFACE = "GLOO_SOCKET_IFNAME"
"""The interface of torch's gloo, which the session may have chosen. Without it, gloo resolves the
host's name.
"""
INITIALISED = (
    "hvd.init() was called before the session, as rank {} of {}, and the session has rank {} of {}:"
    " leave hvd.init() out"
)


def open_horovod(session: Context, hvd: Any, mpi: bool) -> None:
    """Start Horovod for the session's ranks, and end it with the session. All ranks call it.

    With ``mpi``, Horovod communicates over MPI instead of gloo. Raises LaunchError if Horovod does
    not start, and UsageError if the script has started it with other ranks.
    """
    if not hvd.is_initialized():
        with guarded_groups(session), _place(session, mpi) as place, environment_variables(place):
            session.on_close.callback(_compat.end, hvd)
            _init(session, hvd)
            session.all_gather_object(None)  # rank 0's server stays until all ranks are connected
    if (hvd.rank(), hvd.size()) != (session.rank, session.world_size):
        raise UsageError(
            INITIALISED.format(hvd.rank(), hvd.size(), session.rank, session.world_size)
        )


def _init(session: Context, hvd: Any) -> None:
    try:
        hvd.init()
    except ValueError as error:
        raise LaunchError(f"rank {session.rank}: Horovod could not start: {error}") from error


@contextmanager
def _place(session: Context, mpi: bool) -> Iterator[dict[str, str]]:
    """Yield the environment variables for Horovod. Rank 0 serves the rendezvous inside."""
    if mpi:
        yield {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
    elif session.is_main:
        with _compat.rendezvous(_local_address(session)) as port:
            yield _variables(session, [_seen_address(session), port])
    else:
        yield _variables(session, [])


def _variables(session: Context, server: list[object]) -> dict[str, str]:
    """Return the variables that horovodrun would have set. All ranks call it.

    ``server`` is the address and port of rank 0's server, and empty on other ranks.
    """
    world = session.world
    reported = session.all_gather_object((server, world.node_rank, world.local_rank))
    (address, port), *_ = reported[0]
    alike = sorted(node for _, node, local in reported if local == world.local_rank)
    found = {
        "RANK": world.rank,
        "SIZE": world.world_size,
        "LOCAL_RANK": world.local_rank,
        "LOCAL_SIZE": world.local_world_size,
        "CROSS_RANK": alike.index(world.node_rank),
        "CROSS_SIZE": len(alike),
        "HOSTNAME": f"node{world.node_rank}",
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
        "GLOO_RENDEZVOUS_ADDR": address,
        "GLOO_RENDEZVOUS_PORT": port,
        "GLOO_TIMEOUT_SECONDS": min(round(session.timeout.total_seconds()), SILENCE_S),
    }
    if INTERFACE in os.environ:
        found["GLOO_IFACE"] = os.environ[INTERFACE]
    variables = {f"HOROVOD_{name}": str(value) for name, value in found.items()}
    return variables | {name: os.environ[name] for name in CHOSEN if name in os.environ}


def _seen_address(session: Context) -> str:
    """Return the address at which the other ranks reach rank 0."""
    if session.world.one_host:
        return LOOPBACK
    return os.environ.get("MASTER_ADDR") or socket.gethostname()


def _local_address(session: Context) -> str:
    """Return the address that rank 0's server binds to, or "" for all interfaces.

    It is "" if this host does not have the address at which others reach it.
    """
    try:
        number = socket.gethostbyname(_seen_address(session))
        with socket.socket() as attempt:
            attempt.bind((number, 0))
    except OSError:
        return ""
    return number


COMPRESSIONS = ("none", "fp16")
ADASUM_NEEDS_MPI = (
    "adasum=True on a CPU needs Horovod's MPI operations: build Horovod with HOROVOD_WITH_MPI=1,"
    " and start the ranks with mpirun"
)
ADASUM_RANKS = (
    "adasum=True with {} ranks: Horovod's Adasum takes a power of two. Start 2, 4 or 8 ranks, or"
    " remove adasum=True"
)
ELASTIC = (
    "horovodrun was started in its elastic mode, in which the number of ranks changes while the"
    " loop runs: start it with only -np, and pass checkpoint= to resume with another number"
)


class Horovod(Strategy):
    """Each rank trains on its share of the data. Horovod averages the gradients.

    Args:
        compression: "fp16" sends gradients in 16 bits; "none" sends them as they are.
        adasum: whether Horovod's Adasum combines the gradients, instead of their mean. The number
            of ranks must be a power of two.
        loss_reduction: whether losses are a "mean" or a "sum" over samples. "auto" reads this from
            the loss's graph, and assumes a mean if the graph does not show it.
        loss_weight: what a rank's gradient counts in the mean: "auto", "samples" or "tokens", as
            for ddp.
        sync_loss: whether the loss tensor holds the mean (sum) over all ranks after ``backward``.
        backend: the torch.distributed backend for everything except gradients. None means
            TORCHBUS_BACKEND, or else the usual backend of the device.

    Raises:
        UsageError: an option has another type or value. When the session starts: Horovod is not
            installed, or was built without gloo, torch, or what an option needs.
        Unsupported: horovodrun is in its elastic mode.

    Source: Sergeev and Del Balso, Horovod: fast and easy distributed deep learning in TensorFlow,
    2018; Maleki et al., Scaling Distributed Training with Adaptive Summation, MLSys 2021.
    """

    name = "horovod"

    def __init__(
        self,
        *,
        compression: Compression = "none",
        adasum: bool = False,
        loss_reduction: Literal["auto", "mean", "sum"] = "auto",
        loss_weight: Literal["auto", "samples", "tokens"] = "auto",
        sync_loss: bool = True,
        backend: str | None = None,
    ) -> None:
        super().__init__(
            backend=backend,
            loss_reduction=loss_reduction,
            loss_weight=loss_weight,
            sync_loss=sync_loss,
        )
        if compression not in COMPRESSIONS:
            raise UsageError(f"compression={compression!r} is unknown: use 'none' or 'fp16'")
        expect("adasum", adasum, bool, "True or False")
        self.compression, self.adasum = compression, adasum
        self._hvd: Any = None

    @hookimpl
    def launch(self, session: Context) -> World:
        if session.launcher.has_many_ranks():
            require_horovod()
            if os.environ.get("HOROVOD_ELASTIC") == "1":
                raise Unsupported(ELASTIC)
            self._hvd = load()  # ranks that are forked share the import
        return super().launch(session)

    def start(self, session: Context) -> None:
        """Start Horovod, and begin to average gradients. All ranks call it."""
        check_device(self._hvd, session.device.type)
        open_horovod(session, self._hvd, self._needs_mpi(session))
        super().start(session)

    def _needs_mpi(self, session: Context) -> bool:
        """Return whether Horovod must communicate over MPI.

        Raises UsageError if it can't, or if Adasum does not support this number of ranks.
        """
        if not self.adasum:
            return False
        if session.world_size & (session.world_size - 1):
            raise UsageError(ADASUM_RANKS.format(session.world_size))
        if session.device.type != "cpu":
            return False
        if not self._hvd.mpi_built() or session.world.launched_by != "MPI":
            raise UsageError(ADASUM_NEEDS_MPI)
        return True

    def reductions(self, session: Context, trained: strategy_trained.TrainedParameters) -> Sets:
        """Return Horovod's reductions of the ``trained`` parameters. All ranks call it."""
        return Sets(self._hvd, trained, self.adasum, self.compression)

    def how(self) -> str:
        """Return what ``explain()`` says after the strategy's name and backend."""
        verb = "combines gradients by Adasum" if self.adasum else "averages gradients"
        bits = ", in 16 bits" if self.compression == "fp16" else ""
        return f"Horovod {verb}{bits}, while backward makes the next ones; {self.of_loss()}"


MISSING = (
    "strategy='horovod' needs Horovod, which is not installed: contrib/horovod/README.md says how"
    " to build it"
)
WITHOUT_TORCH = (
    "Horovod is installed without its library for torch: build it with HOROVOD_WITH_PYTORCH=1;"
    " contrib/horovod/README.md says how"
)
WITHOUT_GLOO = (
    "Horovod was built without gloo: build it with HOROVOD_WITH_GLOO=1;"
    " contrib/horovod/README.md says how"
)
WITHOUT_GPU = (
    "Horovod was built without GPU operations, and this rank's device is {}: build it with"
    " HOROVOD_GPU_OPERATIONS=NCCL, or use accelerator='cpu'"
)


def require_horovod() -> None:
    """Raise UsageError if Horovod is not installed. Imports nothing."""
    if find_spec("horovod") is None:
        raise UsageError(MISSING)


def load() -> Any:
    """Import Horovod. Raises UsageError if it was built without torch or gloo."""
    hvd = _compat.horovod()
    if not hasattr(hvd, "init"):
        raise UsageError(WITHOUT_TORCH)
    if not hvd.gloo_built():
        raise UsageError(WITHOUT_GLOO)
    return hvd


def check_device(hvd: Any, kind: str) -> None:
    """Raise UsageError if Horovod can't send tensors of this device type."""
    if kind != "cpu" and not (hvd.cuda_built() or hvd.rocm_built()):
        raise UsageError(WITHOUT_GPU.format(kind))
