"""Averages tensors over ranks, in one collective per dtype and device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus.compat.torch_names import version

from torchbus_strategy.compat import local_part, placed_as, sparse_values


def mean_over(tensors: Sequence[Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Replace tensors in place by their means over the ranks of a group.

    It needs one collective per dtype and device. All ranks of the group call it with tensors of the
    same shapes, dtypes and devices.
    """
    for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
        same = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        dist.all_reduce(flat, group=group)
        flat /= dist.get_world_size(group)
        for tensor, part in zip(same, flat.split([one.numel() for one in same]), strict=True):
            tensor.copy_(part.view_as(tensor))


@torch.no_grad()
def average(
    parameters: Sequence[Tensor],
    weight: float,
    mean: Callable[[Sequence[Tensor]], None] = mean_over,
) -> None:
    """Average gradients that did not come from a synchronised ``backward``. All ranks call it.

    ``weight`` is this rank's weight in the mean. A gradient that no rank has stays None. Averaging
    gradients that are already equal changes nothing. ``mean`` replaces tensors by their mean.
    """
    device = local_part(parameters[0]).device
    present = torch.tensor([float(one.grad is not None) for one in parameters], device=device)
    dist.all_reduce(present)
    made = [one for one, ranks in zip(parameters, present.tolist(), strict=True) if ranks]
    gradients = [dense_gradient(one) * weight for one in made]
    mean(gradients)
    for one, gradient in zip(made, gradients, strict=True):
        one.grad = gradient


def dense_gradient(parameter: Tensor) -> Tensor:
    """Return a parameter's gradient, of the same shape, or zeros if it has none.

    The gradient is dense, and placed as the parameter is. All ranks that share a DTensor call it.
    """
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    return placed_as(gradient.to_dense() if gradient.is_sparse else gradient, parameter)


class LocalParameters(set[int]):
    """The ids of the parameters that hold gradients of only this rank.

    ``discarded`` says that this rank had no samples, and so holds no gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.discarded = False
        self._before: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def begin(self, parameters: Sequence[Tensor]) -> None:
        """Add the parameters of a backward that begins, and that does not synchronise.

        All ranks add the same ones. The backward may leave some gradients as they are, such as
        those of a model that is no longer trained.
        """
        if self.issuperset(map(id, parameters)):
            return
        for parameter in parameters:
            gradient, key = parameter.grad, id(parameter)
            if key in self:
                continue
            self.add(key)
            self._before.pop(key, None)
            if gradient is not None:
                self._before[key] = weakref.ref(gradient), version(gradient)

    def remain(self, parameters: Iterable[Tensor]) -> bool:
        """Whether there are any such gradients, which the loop has not cleared.

        Gradients on a GPU always count, because the host would have to wait to see zeros.
        """
        if self and not self.discarded:
            held = [parameter for parameter in parameters if id(parameter) in self]
            if not any(map(self._has_local, held)):
                self.clear()
        self.discarded &= bool(self)
        return bool(self)

    def _has_local(self, parameter: Tensor) -> bool:
        """Whether a parameter's gradient has changed since ``begin``, and is not zero."""
        gradient = parameter.grad
        if gradient is None:
            return False
        known, at = self._before.get(id(parameter), (lambda: None, 0))
        return (known() is not gradient or version(gradient) != at) and _counts(gradient)


def _counts(gradient: Tensor) -> bool:
    values = sparse_values(gradient) if gradient.is_sparse else gradient
    return values.device.type != "cpu" or bool(values.any())
