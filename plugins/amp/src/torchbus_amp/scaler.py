"""torch's GradScaler, for one optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import Unsupported

from torchbus_amp._compat import (
    check_and_unscale_,
    factor_of,
    make_scale,
    note_step,
    scale_of,
    sparse_values,
)


class Scaler(GradScaler):
    """torch's GradScaler for one optimizer, fed with what ``LossScaling`` has found.

    ``found`` is 1 if the gradients that wait for a step have an overflow, 0 if not, and None if no
    gradients wait. ``skipped`` says whether the last step was skipped.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        super().__init__(device.type)
        self.optimizer = weakref.ref(optimizer)
        self.found: Tensor | None = None
        self.skipped = False
        self._scale_device = device

    def parameters(self) -> list[Tensor]:
        """The optimizer's parameters that require gradients."""
        groups = getattr(self.optimizer(), "param_groups", ())
        return [
            parameter
            for group in groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]

    def scale_tensor(self) -> Tensor:
        if self._scale is None:
            make_scale(self, self._scale_device)
        assert self._scale is not None
        return self._scale

    def note(self, found: Tensor) -> None:
        """Grow or shrink the scale after a step: ``found`` is 1 if it was skipped, 0 if not."""
        note_step(self, found)
        self.update()


def scaled_by_loop(loss: Tensor | None) -> bool:
    """Whether a loss comes out of a GradScaler: it is then a product with that scale."""
    factor = factor_of(loss)
    if factor is None:
        return False
    scales = [scale_of(scaler) for scaler in objects.alive(GradScaler)]
    return any(scale is not None and scale.data_ptr() == factor.data_ptr() for scale in scales)


def multiply(tensors: Iterable[Tensor], factor: Tensor) -> None:
    """Multiply the gradients of these tensors, if they have one, in place."""
    gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
    if gradients:
        with torch.no_grad():
            for gradient in gradients:
                gradient.mul_(factor.to(gradient.device))


@torch.no_grad()
def check_and_scale(gradients: Iterable[Tensor], found: Tensor, factor: Tensor) -> None:
    """Multiply in place, and set ``found`` to 1 if anything is infinite or NaN."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for gradient in gradients:
        values = sparse_values(gradient) if gradient.is_sparse else gradient
        kinds.setdefault((values.dtype, values.device), []).append(values)
    for (dtype, device), group in kinds.items():
        if dtype == torch.float16:
            raise Unsupported(
                "precision='16-mixed' with float16 parameters: keep them in float32, or use"
                " precision='16-true'"
            )
        on_device = found.to(device)
        check_and_unscale_(group, on_device, factor.to(device))
        if on_device is not found:
            found.copy_(torch.maximum(found, on_device.to(found.device)))
