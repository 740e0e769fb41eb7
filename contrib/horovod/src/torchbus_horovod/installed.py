"""Whether Horovod is installed, and what it was built with."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from torchbus.plugin import UsageError

from torchbus_horovod import _compat

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
    """Import Horovod. Raises UsageError if it lacks what several ranks need."""
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
