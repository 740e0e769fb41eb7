"""Shadow: a copy of the loop's optimizer for DeepSpeed to hold.

DeepSpeed puts flat shards into the groups of its optimizer, and steps it once for each group. So
the groups, hooks and schedulers of the loop's optimizer remain unchanged."""

from __future__ import annotations

import inspect
import types
from collections import Counter, defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus.compat.torch_names import version
from torchbus.plugin import mark_internal

from torchbus_deepspeed import _compat
from torchbus_strategy.checks.constants import Digest

NOT_COPIED = ("step", "state", "param_groups")
"""Attributes that are not copied. A scheduler counts the calls of the loop's ``step``."""


def shadow_of(optimizer: Optimizer, parameters: set[int]) -> Optimizer:
    """Return an optimizer of the same class with the same hyperparameters, and no state.

    It holds the optimizer's parameters that are in ``parameters`` (ids) and require gradients. No
    hooks run around its ``step``.
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
    """Return copies of an optimizer's groups, with only some of their parameters.

    These are in ``parameters`` (ids) and require gradients.
    """
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
    """Disable the hooks around the shadow's ``step``."""
    unhooked = torch.no_grad()(inspect.unwrap(type(shadow).step))
    shadow.step = types.MethodType(unhooked, shadow)


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


CLOSELY = 3
"""In how many forwards a parameter's values are compared, as ``data`` hides writes."""


class ForwardWrites:
    """Copies a forward's writes to this rank's shard, before DeepSpeed frees the parameters."""

    def __init__(self, model: Module) -> None:
        self._versions = {id(one): version(one) for one in model.parameters()}
        self._forwards: Counter[int] = Counter()
        self._hidden: set[int] = set()
        self.digest = Digest()
        """A digest of the writes that were copied, which is equal on ranks that agree."""
        self._hooks = [
            module.register_forward_hook(self._keep, prepend=True)
            for module in model.modules()
            if any(True for _ in module.parameters(recurse=False))
        ]

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _keep(self, module: Module, inputs: object, outputs: object) -> None:
        for parameter in _compat.direct_parameters(module).values():
            if parameter is None or not _compat.is_gathered(parameter):
                continue
            if version(parameter) != self._versions[id(parameter)]:
                self._versions[id(parameter)] = version(parameter)
                self.digest.add(parameter)
                _compat.put_parameter(parameter, parameter)
            elif self._is_hidden(parameter):
                _compat.put_parameter(parameter, parameter)

    def _is_hidden(self, parameter: Tensor) -> bool:
        """Whether a parameter was written through ``data``.

        Only ranks whose shard has a written element detect this.
        """
        key = id(parameter)
        if self._forwards[key] < CLOSELY and key not in self._hidden:
            self._forwards[key] += 1
            if not _compat.equals_local_part(parameter):
                self._hidden.add(key)
        return key in self._hidden
