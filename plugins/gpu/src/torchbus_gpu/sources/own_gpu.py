"""The GPU of this rank: looked for when CUDA is in use, given up with one warning when it can't be read."""

from __future__ import annotations

import pynvml
import torch
from torchbus.plugin import Context

from torchbus_gpu.notices import Notices
from torchbus_gpu.sources.allocator import Allocator
from torchbus_gpu.sources.nvml import NvidiaGpu, uuid_of


class OwnGpu:
    """Reads nothing until the loop has initialised CUDA: asking for the UUID earlier would do so, and forbid a later fork."""

    def __init__(self, session: Context, notices: Notices) -> None:
        self._session = session
        self._notices = notices
        self._gpu: NvidiaGpu | None = None
        self._given_up = False

    @property
    def name(self) -> str:
        return "" if self._gpu is None else self._gpu.name

    def read(self) -> dict[str, float]:
        if self._session.device.type != "cuda" or not torch.cuda.is_initialized():
            return {}
        return self._from_driver() | Allocator(self._session.device).read()

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
            self._notices.tell(
                f"rank {self._session.rank}: {self._session.device} is no longer measured: {error}. Training goes on; "
                "nvidia-smi says whether the driver sees the GPU"
            )
            return {}

    def _find(self) -> NvidiaGpu:
        uuid = uuid_of(self._session.device)
        if uuid is None:
            raise LookupError(f"torch {torch.__version__} does not tell its UUID")
        return NvidiaGpu(uuid)
