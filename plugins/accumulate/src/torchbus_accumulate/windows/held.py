"""The gradients that one optimizer's steps have committed in a window so far."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import Unsupported

from torchbus_accumulate._compat import version
from torchbus_strategy.loss.gradients import scale_all
from torchbus_strategy.loss.terms import Number


class HeldGradients:
    """Holds each parameter with its gradient, and the gradient's version at the commit."""

    __slots__ = ("_held", "would_be_cleared")

    def __init__(self) -> None:
        self._held: list[tuple[Tensor, Tensor, int]] = []
        self.would_be_cleared = False  # if there were any, at the next backward

    def take(self, optimizer: Optimizer) -> None:
        """Hold the gradients that the parameters have now."""
        self._held = [
            (one, found, version(found))
            for group in optimizer.param_groups
            for one in group["params"]
            if (found := one.grad) is not None
        ]

    def load(self, parameters: list[Tensor], gradients: list[Tensor | None]) -> None:
        """Hold gradients from a checkpoint, sharded as the parameters are."""
        placed = [
            (parameter, as_parameter(gradient.to(parameter.device), parameter))
            for parameter, gradient in zip(parameters, gradients, strict=True)
            if gradient is not None
        ]
        self._held = [(parameter, gradient, version(gradient)) for parameter, gradient in placed]

    def drop(self) -> None:
        """Hold nothing."""
        self._held = []

    def of(self, parameters: list[Tensor]) -> list[Tensor | None]:
        """Return the held gradient of each parameter, or None."""
        found = {id(parameter): gradient for parameter, gradient, _ in self._held}
        return [found.get(id(parameter)) for parameter in parameters]

    def has_all(self, gradients: list[Tensor]) -> bool:
        """Whether all of these are held."""
        held = {id(gradient) for _, gradient, _ in self._held}
        return all(id(gradient) in held for gradient in gradients)

    def put_back(self, as_copies: bool) -> None:
        """Make them the parameters' gradients, so that the next backward adds to them."""
        for parameter, gradient, _ in self._held:
            parameter.grad = gradient.clone() if as_copies else gradient

    def merge(self) -> None:
        """Add them to the gradients that the loop has made since they were set aside."""
        for parameter, gradient, _ in self._held:
            mine = parameter.grad
            parameter.grad = gradient if mine is None or mine is gradient else gradient + mine

    def clear_parameters(self) -> None:
        """Set the gradients of the parameters to None. The held ones stay."""
        for parameter, _, _ in self._held:
            parameter.grad = None

    def are_cleared(self) -> bool:
        """Whether the gradients of all parameters are None.

        A rank without samples holds none: it infers them from the loop's earlier steps.
        """
        if not self._held:
            return self.would_be_cleared
        return all(parameter.grad is None for parameter, _, _ in self._held)

    def scale(self, factor: Number) -> None:
        """Multiply them in place."""
        scale_all([gradient for _, gradient, _ in self._held], factor)

    def check_untouched(self) -> None:
        """Raise Unsupported if the loop has changed one in place since the commit."""
        if any(version(gradient) != before for _, gradient, before in self._held):
            raise Unsupported(
                "gradients were changed in place between optimizer.step() and the next backward, in"
                " the middle of a window: clear them by optimizer.zero_grad() or model.zero_grad(),"
                " or accumulate in the loop under s.accumulating(...)"
            )


def is_part(tensor: object) -> bool:
    """Whether it is a DTensor. This does not import that class."""
    return hasattr(tensor, "full_tensor")


def whole(part: Any) -> Tensor:
    """Gather the whole gradient. All ranks call it."""
    gathered: Tensor = part.full_tensor()
    return gathered


def as_parameter(gradient: Tensor, parameter: Any) -> Tensor:
    """Shard a gradient as its parameter is sharded. A whole one must be the same on all ranks."""
    if not is_part(parameter) or is_part(gradient):
        return gradient
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        gradient, parameter.device_mesh, parameter.placements, src_data_rank=None
    )
