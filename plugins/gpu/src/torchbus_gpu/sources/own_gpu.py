"""The GPU of this rank. If it can't be read, there is one warning."""

from __future__ import annotations

import pynvml
import torch
from torchbus.plugin import Context

from torchbus_device import accelerators
from torchbus_gpu.notices import Notices
from torchbus_gpu.sources.allocator import Allocator
from torchbus_gpu.sources.nvml import NvidiaGpu, uuid_of


class LocalGpu:
    """Reads nothing until the loop has initialised the device.

    Asking for the UUID initialises CUDA, after which the process can't fork ranks.
    """

    def __init__(self, session: Context, notices: Notices) -> None:
        self._session = session
        self._notices = notices
        self._gpu: NvidiaGpu | None = None
        self._given_up = False

    @property
    def name(self) -> str:
        return "" if self._gpu is None else self._gpu.name

    def read(self) -> dict[str, float]:
        device = self._session.device
        if device.type == "cpu" or not accelerators.is_initialized(device.type):
            return {}
        driver = self._from_driver() if device.type == "cuda" else {}
        return driver | Allocator(device).read()

    def close(self) -> None:
        if self._gpu is not None:
            self._gpu.close()

    def _from_driver(self) -> dict[str, float]:
        if self._given_up:
            return {}
        try:
            self._gpu = self._gpu or self._find()
            return self._gpu.read()
        except (pynvml.NVMLError, LookupError) as error:
            self._given_up = True
            self._notices.warn(
                f"rank {self._session.rank}: {self._session.device} is no longer measured: {error}."
                " Training continues; nvidia-smi says whether the driver sees the GPU"
            )
            return {}

    def _find(self) -> NvidiaGpu:
        uuid = uuid_of(self._session.device)
        if uuid is None:
            raise LookupError(f"torch {torch.__version__} does not report its UUID")
        return NvidiaGpu(uuid)
