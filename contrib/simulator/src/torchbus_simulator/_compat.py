"""Private names by which a device registers itself. All were seen in 2.13."""

from __future__ import annotations

from types import ModuleType

import torch

ASKED_BY_TORCH = ("_lazy_init", "_is_in_bad_fork")
"""Functions that torch calls in a device's module: at its first use, and when seeds are set.

Without the former, a process that has used the device could be forked; without the latter, a seed
in such a fork would raise.
"""


def add_module(name: str, module: ModuleType, begin: object, is_in_bad_fork: object) -> None:
    """Make ``torch.NAME``. Without ``_register_device_module``: AttributeError at ``load``."""
    module.__dict__.update(zip(ASKED_BY_TORCH, (begin, is_in_bad_fork), strict=True))
    torch._register_device_module(name, module)
