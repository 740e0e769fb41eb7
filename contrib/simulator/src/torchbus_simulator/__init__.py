"""A simulated accelerator, on which code for GPUs runs without a GPU.

::

    import torchbus_simulator as accelerator

    accelerator.load(devices=2)
    x = torch.randn(3, device="sim")

For torch it is a separate device, ``sim``, with a module ``torch.sim`` and a collective backend
``simccl``. Its kernels are the CPU's. An operation that mixes its tensors with CPU tensors is an
error, as on a GPU. ``host_waits`` lists the operations in which the host waits for the device. With
``late=True`` a stream runs only when the host or another stream waits for it, so a missing wait
gives wrong numbers. ``limit_memory`` sets the size of its memory, so that it can run out of it.

The extension is built once in each environment, in about half a minute, with g++ and ninja.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torchbus.plugin import UsageError

from torchbus_simulator import device
from torchbus_simulator._compat import add_module
from torchbus_simulator.build import Wait, extension, host_waits, missing

__all__ = ["BACKEND", "NAME", "Wait", "host_waits", "limit_memory", "load", "missing"]

NAME = "sim"
BACKEND = "simccl"


def load(devices: int = 2, late: bool = False) -> None:
    """Register ``devices`` simulated devices in this process, before it uses any accelerator.

    With ``late``, streams run as late as possible. A second call changes ``late``, and the number
    of devices unless the process has used one. Raises UsageError if torch has a GPU, or if the
    extension can't be built.
    """
    if not hasattr(torch, NAME):
        _register()
    extension().configure(devices, late)


def limit_memory(mib: float, index: int = 0) -> None:
    """Limit a device of this process to ``mib`` MiB; it has 16 GiB by default.

    An allocation beyond the limit raises torch.OutOfMemoryError.
    """
    extension().limit_memory(index, int(mib * 2**20))


def _register() -> None:
    if torch.cuda.is_available():
        raise UsageError(
            "the simulated accelerator can't stand beside a GPU: set CUDA_VISIBLE_DEVICES=''"
        )
    torch.utils.rename_privateuse1_backend(NAME)
    mine = extension()
    add_module(NAME, device.module(), mine.initialise, mine.is_in_bad_fork)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    if dist.is_available() and dist.is_gloo_available():
        dist.Backend.register_backend(BACKEND, _collectives, devices=[NAME])


def _collectives(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.Backend:
    gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
    made: dist.Backend = extension().collectives(gloo)
    return made
