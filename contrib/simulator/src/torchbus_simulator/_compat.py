"""Private names of torch that register a device. All were seen in 2.13."""

from __future__ import annotations

from types import ModuleType

import torch

ASKED_BY_TORCH = ("_lazy_init", "_is_in_bad_fork")
"""Functions of a device's module that torch calls: at the first use, and when it sets seeds.

Without the former, a fork of a process that has used the device could use it. Without the latter,
setting a seed in such a fork would raise.
"""


def add_module(name: str, module: ModuleType, begin: object, is_in_bad_fork: object) -> None:
    """Make ``torch.NAME``. Without ``_register_device_module``: AttributeError at ``load``."""
    module.__dict__.update(zip(ASKED_BY_TORCH, (begin, is_in_bad_fork), strict=True))
    torch._register_device_module(name, module)
