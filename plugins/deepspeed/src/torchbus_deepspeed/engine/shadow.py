"""A second optimizer for DeepSpeed to hold.

DeepSpeed puts flat parts into the groups of its optimizer, and steps it once per group. The loop's
own optimizer keeps its groups, its hooks and its schedulers.
"""

from __future__ import annotations

import inspect
import types
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import mark_internal

NOT_COPIED = ("step", "state", "param_groups")
"""A scheduler counts calls of the loop's own ``step``."""


def shadow_of(optimizer: Optimizer, parameters: set[int]) -> Optimizer:
    """An optimizer of the same class with the same hyperparameters, and no state.

    It holds those of ``parameters`` (ids) that require gradients. No hook runs around its ``step``.
    """
    cls = type(optimizer)
    shadow: Any = object.__new__(cls)
    attributes = {name: value for name, value in vars(optimizer).items() if name not in NOT_COPIED}
    vars(shadow).update(attributes)
    shadow.state = defaultdict(dict)
    shadow.param_groups = groups_with(optimizer, parameters)
    mark_internal(shadow)
    unhook(shadow)
    made: Optimizer = shadow
    return made


def groups_with(optimizer: Optimizer, parameters: set[int]) -> list[dict[str, Any]]:
    """Copies of its groups, with those of ``parameters`` (ids) that require gradients."""
    return [
        {
            **group,
            "params": [
                one for one in group["params"] if id(one) in parameters and one.requires_grad
            ],
        }
        for group in optimizer.param_groups
    ]


def unhook(shadow: Any) -> None:
    """Let no hook run around its ``step``."""
    unhooked = torch.no_grad()(inspect.unwrap(type(shadow).step))
    shadow.step = types.MethodType(unhooked, shadow)


def copy_hyperparameters(source: Mapping[str, object], target: dict[str, object]) -> None:
    """What the loop or a scheduler has set in a group holds for the shadow's group, too."""
    target.update({name: value for name, value in source.items() if name != "params"})


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
