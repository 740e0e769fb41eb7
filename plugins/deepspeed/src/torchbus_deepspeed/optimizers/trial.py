"""Whether a kernel steps as the loop's optimizer: both are tried on small tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import UsageError

from torchbus_deepspeed.engine.shadow import shadow_of
from torchbus_deepspeed.optimizers.kernels import Kernel

OTHERWISE = (
    "config: optimizer.type={!r} means DeepSpeed's {}, which steps otherwise than the loop's {}{}:"
    " leave the section out, or make in the loop what {} has"
)
FREE = ("params", "foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay")
"""What a group says that doesn't change the numbers, or is compared by itself."""
SHAPES = ((3, 4), (5,))
LR = 0.1


def refuse_unlike(kernel: Kernel, optimizer: Optimizer, kind: str, device: torch.device) -> None:
    """Raise UsageError if a group of the loop's optimizer is not stepped as before."""
    for group in optimizer.param_groups:
        asked = [
            f"{name}={value!r}"
            for name, value in group.items()
            if value and name in optimizer.defaults and name not in (*FREE, *kernel.takes)
        ]
        if asked or not _step_alike(kernel, optimizer, group, device):
            own, words = type(optimizer).__name__, f" with {', '.join(asked)}" if asked else ""
            raise UsageError(OTHERWISE.format(kind, kernel.name, own, words, kernel.name))


def _step_alike(
    kernel: Kernel, optimizer: Optimizer, group: dict[str, object], device: torch.device
) -> bool:
    hyperparameters = {name: value for name, value in group.items() if name != "params"}
    shadows = shadow_of(optimizer, set()), kernel.shadow_of(optimizer, set())
    one, other = (
        stepped(shadow, hyperparameters | {"lr": LR}, tensors(device), made(device))
        for shadow in shadows
    )
    return alike(one, other)


def tensors(device: torch.device | str = "cpu", seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device) for shape in SHAPES]


def made(device: torch.device | str = "cpu") -> list[list[Tensor]]:
    """The gradients of two steps."""
    return [tensors(device, seed) for seed in (1, 2)]


def stepped(
    shadow: Optimizer,
    hyperparameters: dict[str, object],
    start: Sequence[Tensor],
    gradients: Sequence[Sequence[Tensor]],
) -> list[Tensor]:
    """What becomes of tensors by the steps of an optimizer that holds nothing else."""
    parameters = [tensor.clone().requires_grad_() for tensor in start]
    known = shadow.param_groups[0] if shadow.param_groups else {}
    shadow.param_groups = [{**known, **hyperparameters, "params": parameters}]
    for each in gradients:
        for parameter, gradient in zip(parameters, each, strict=True):
            parameter.grad = gradient.clone()
        shadow.step()
    return [parameter.detach() for parameter in parameters]


def alike(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in pairs)
