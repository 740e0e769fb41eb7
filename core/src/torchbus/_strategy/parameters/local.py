"""Gradients that no rank has synchronised yet."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor

from torchbus._compat.autograd import version
from torchbus._compat.gradients import sparse_values


class Local(set[int]):
    """The ids of the parameters that hold such gradients.

    ``discarded``: this rank had no samples, and holds nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.discarded = False
        self._before: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def begin(self, parameters: Iterable[Tensor]) -> None:
        """A backward begins that synchronises nothing. All ranks add the same parameters.

        Their gradients may be left as they are, such as those of a model that is trained no more.
        """
        for parameter in parameters:
            gradient, key = parameter.grad, id(parameter)
            if key in self:
                continue
            self.add(key)
            self._before.pop(key, None)
            if gradient is not None:
                self._before[key] = weakref.ref(gradient), version(gradient)

    def remain(self, parameters: Iterable[Tensor]) -> bool:
        """Whether there are any, or the loop has cleared them.

        Zeros on a GPU are not looked at, for which the host would wait.
        """
        if self and not self.discarded:
            held = [parameter for parameter in parameters if id(parameter) in self]
            if not any(map(self._has_own, held)):
                self.clear()
        self.discarded &= bool(self)
        return bool(self)

    def _has_own(self, parameter: Tensor) -> bool:
        """Whether its gradient has changed since ``begin``, and is not zero."""
        gradient = parameter.grad
        if gradient is None:
            return False
        known, at = self._before.get(id(parameter), (lambda: None, 0))
        return (known() is not gradient or version(gradient) != at) and _counts(gradient)


def _counts(gradient: Tensor) -> bool:
    values = sparse_values(gradient) if gradient.is_sparse else gradient
    return values.device.type != "cpu" or bool(values.any())
