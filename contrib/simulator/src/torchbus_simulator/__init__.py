"""A simulated accelerator: code for GPUs runs on it where there is none.

::

    import torchbus_simulator as accelerator

    accelerator.load(devices=2)
    x = torch.randn(3, device="sim")

For torch it is a separate device, ``sim``, with a module ``torch.sim`` and a collective backend
``simccl``. Its kernels are the CPU's. A tensor on it is not on the CPU: to mix them is an error.
``host_waits`` counts how often the host waits for it. With ``late=True`` a stream does nothing
until the host or another stream waits for it, so that a missing wait gives wrong numbers.
``limit_memory`` makes it run out of memory as a GPU does.

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
    """Register the device in this process, before it uses any accelerator.

    ``late``: streams run late on purpose. A second call changes the numbers of an unused device.
    Raises UsageError if torch has another accelerator, or if it can't be built.
    """
    if not hasattr(torch, NAME):
        _register()
    extension().configure(devices, late)


def limit_memory(mib: float, index: int = 0) -> None:
    """Limit a device of this process to ``mib`` MiB: beyond, it raises torch.OutOfMemoryError."""
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
