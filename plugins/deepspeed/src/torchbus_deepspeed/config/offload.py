"""Checks the requirements of offload to NVMe: libaio, and a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchbus.plugin import UsageError

from torchbus_deepspeed._compat import package

SECTIONS = ("offload_optimizer", "offload_param")
NO_AIO = (
    "config: {}.device='nvme' needs DeepSpeed's async_io, which can't be built here: install libaio"
    " (libaio-dev, libaio-devel), or use device 'cpu'; `ds_report` says what is missing"
)
NO_PATH = "config: {}.device='nvme' needs {}.nvme_path, a folder on the NVMe disk"


def check(zero: Mapping[str, Any]) -> None:
    """Raise UsageError if NVMe offload is configured but not available."""
    for name in SECTIONS:
        section = zero.get(name) or {}
        if section.get("device") != "nvme":
            continue
        if not section.get("nvme_path"):
            raise UsageError(NO_PATH.format(name, name))
        if not package.has_async_io():
            raise UsageError(NO_AIO.format(name))
