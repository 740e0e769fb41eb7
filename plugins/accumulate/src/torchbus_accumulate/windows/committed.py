"""The gradients that one optimizer's steps have committed in a window so far."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torchbus.compat.torch_names import version
from torchbus.plugin import Unsupported

from torchbus_strategy.compat import gradient as gradient_of
from torchbus_strategy.compat import is_divided
from torchbus_strategy.loss.gradients import NONE, scale_all
from torchbus_strategy.loss.terms import Number


class HeldGradients:
    """Holds parameters, their gradients, and the gradients' versions at the commit."""

    __slots__ = ("_gradients", "_parameters", "_versions", "would_be_cleared")

    def __init__(self) -> None:
        self.drop()
        self.would_be_cleared = False  # whether the loop clears gradients before the next backward

    def take(self, parameters: list[Tensor]) -> None:
        """Hold the gradients that the parameters have now."""
        made: list[Any] = list(map(gradient_of, parameters))
        if not NONE.isdisjoint(map(type, made)):
            parameters = [one for one in parameters if one.grad is not None]
            made = [one.grad for one in parameters]
        self._hold(parameters, made)

    def _hold(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        self._parameters, self._gradients = parameters, gradients
        self._versions = list(map(version, gradients))

    def load(self, parameters: list[Tensor], gradients: list[Tensor | None]) -> None:
        """Hold gradients from a checkpoint, sharded like their parameters; None is left out."""
        placed = [
            (parameter, as_parameter(gradient.to(parameter.device), parameter))
            for parameter, gradient in zip(parameters, gradients, strict=True)
            if gradient is not None
        ]
        self._hold([parameter for parameter, _ in placed], [gradient for _, gradient in placed])

    def drop(self) -> None:
        """Release all held gradients."""
        self._hold([], [])

    def of(self, parameters: list[Tensor]) -> list[Tensor | None]:
        """Return the held gradient of each parameter, or None."""
        found = dict(zip(map(id, self._parameters), self._gradients, strict=True))
        return [found.get(id(parameter)) for parameter in parameters]

    def has_all(self, gradients: list[Tensor]) -> bool:
        """Whether all these gradients are held."""
        return {*map(id, self._gradients)}.issuperset(map(id, gradients))

    def put_back(self, as_copies: bool) -> None:
        """Make the held gradients the parameters' again, so that the next backward adds to them."""
        copies = [one.clone() for one in self._gradients] if as_copies else self._gradients
        for parameter, gradient in zip(self._parameters, copies, strict=True):
            parameter.grad = gradient

    def merge(self) -> None:
        """Add the held gradients to those that the loop has computed since."""
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            mine = parameter.grad
            parameter.grad = gradient if mine is None or mine is gradient else gradient + mine

    def clear_parameters(self) -> None:
        """Set the parameters' gradients to None. The held gradients remain."""
        for parameter in self._parameters:
            parameter.grad = None

    def are_cleared(self) -> bool:
        """Whether the gradients of all parameters are None.

        A rank without samples holds no gradients, so it infers the answer from how the loop has
        cleared gradients before (``would_be_cleared``).
        """
        if not self._parameters:
            return self.would_be_cleared
        return set(map(type, map(gradient_of, self._parameters))) == NONE

    def scale(self, factor: Number) -> None:
        """Multiply the held gradients in place."""
        scale_all(self._gradients, factor)

    def check_untouched(self) -> None:
        """Raise Unsupported if the loop has changed a held gradient in place since the commit."""
        if list(map(version, self._gradients)) != self._versions:
            raise Unsupported(
                "gradients were changed in place between optimizer.step() and the next backward, in"
                " the middle of a window: clear them by optimizer.zero_grad() or model.zero_grad(),"
                " or accumulate in the loop under s.accumulating(...)"
            )


def whole(part: Any) -> Tensor:
    """Return the whole gradient of a DTensor. All ranks must call this."""
    gathered: Tensor = part.full_tensor()
    return gathered


def as_parameter(gradient: Tensor, parameter: Any) -> Tensor:
    """Shard a whole gradient, which must be the same on all ranks, like its parameter.

    A gradient that is sharded already is returned as it is.
    """
    if not is_divided(parameter) or is_divided(gradient):
        return gradient
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        gradient, parameter.device_mesh, parameter.placements, src_data_rank=None
    )
