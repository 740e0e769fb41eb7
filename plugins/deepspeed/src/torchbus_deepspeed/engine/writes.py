"""What a forward writes to parameters (a clamp, a norm). Stage 3 would let go of it."""

from __future__ import annotations

from collections import Counter

from torch import Tensor
from torch.nn import Module

from torchbus_deepspeed._compat import zero
from torchbus_strategy.checks.constants import Digest

CLOSELY = 3
"""Forwards of each parameter in which its numbers are compared: ``data`` hides a write."""


class Writes:
    """Copies them to this rank's part, before DeepSpeed lets a module's parameters go."""

    def __init__(self, model: Module) -> None:
        self._versions = {id(one): zero.version(one) for one in model.parameters()}
        self._forwards: Counter[int] = Counter()
        self._hidden: set[int] = set()
        self.digest = Digest()
        """Of what was kept: the same on ranks that agree."""
        self._hooks = [
            module.register_forward_hook(self._keep, prepend=True)
            for module in model.modules()
            if any(True for _ in module.parameters(recurse=False))
        ]

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _keep(self, module: Module, inputs: object, outputs: object) -> None:
        for parameter in zero.own_parameters(module).values():
            if parameter is None or not zero.is_gathered(parameter):
                continue
            if zero.version(parameter) != self._versions[id(parameter)]:
                self._versions[id(parameter)] = zero.version(parameter)
                self.digest.add(parameter)
                zero.put_parameter(parameter, parameter)
            elif self._is_hidden(parameter):
                zero.put_parameter(parameter, parameter)

    def _is_hidden(self, parameter: Tensor) -> bool:
        """Whether it was written through ``data``. Only ranks that have such an element see it."""
        key = id(parameter)
        if self._forwards[key] < CLOSELY and key not in self._hidden:
            self._forwards[key] += 1
            if not zero.is_own_part(parameter):
                self._hidden.add(key)
        return key in self._hidden
