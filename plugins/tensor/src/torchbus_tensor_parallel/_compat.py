"""Private names of torch that tp uses; nothing else in this package uses one.

All were seen in 2.13; the package needs 2.6.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import ModuleType

import torch
from torch.nn import Module

functions_of_nn: ModuleType = torch._C._nn
CROSS_ENTROPY = "cross_entropy_loss"
"""Where ``torch.nn.functional.cross_entropy`` and its module find the function that they call.

Without it: AttributeError when a session with ``loss_parallel=True`` starts.
"""

parameters: Callable[[Module], dict[str, object]] = attrgetter("_parameters")
"""A module's parameters by name. Without it: AttributeError when a model is divided."""

hooks_before: Callable[[Module], dict[int, object]] = attrgetter("_forward_pre_hooks")
hooks_after: Callable[[Module], dict[int, object]] = attrgetter("_forward_hooks")
"""A module's hooks of forward. Without one of the two: AttributeError when a model is divided."""

state_hooks: Callable[[Module], dict[int, object]] = attrgetter("_state_dict_hooks")
load_hooks: Callable[[Module], dict[int, object]] = attrgetter("_load_state_dict_pre_hooks")
"""A module's hooks of states. Without one of the two: AttributeError when a model is divided."""


def forget_distribution(module: Module) -> None:
    """Remove torch's mark of a divided module, so that another session can divide it again.

    Without ``_distribute_module_applied``: nothing fails, since torch then sets no mark.
    """
    vars(module).pop("_distribute_module_applied", None)
