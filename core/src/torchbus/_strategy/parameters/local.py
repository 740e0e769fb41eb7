"""Gradients that no rank has synchronised yet."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from torchbus._compat.gradients import sparse_values


class Local(set[int]):
    """The ids of the parameters that hold such gradients.

    ``discarded``: this rank had no samples, and holds nothing.
    """

    discarded = False

    def remain(self, parameters: Iterable[Tensor]) -> bool:
        """Whether there are any, or the loop has cleared them.

        Zeros on a GPU are not looked at, for which the host would wait.
        """
        if self and not self.discarded:
            held = [
                parameter.grad
                for parameter in parameters
                if id(parameter) in self and parameter.grad is not None
            ]
            if not any(map(_counts, held)):
                self.clear()
        self.discarded &= bool(self)
        return bool(self)


def _counts(gradient: Tensor) -> bool:
    values = sparse_values(gradient) if gradient.is_sparse else gradient
    return values.device.type != "cpu" or bool(values.any())
