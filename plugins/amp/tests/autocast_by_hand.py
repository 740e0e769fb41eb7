"""One small training, twice: as it is written without a thought of precision, and with autocast and
GradScaler by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from torchbus_testing.models import parameter_values, small_net

MIXED = [("16-mixed", torch.float16), ("bf16-mixed", torch.bfloat16)]
Make = Callable[[Any], torch.optim.Optimizer]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, fused=True)


def net() -> nn.Module:
    return small_net(16)


def batches() -> list[Tensor]:
    return list(torch.randn(8, 4, 3, generator=torch.Generator().manual_seed(1)))


def unchanged(
    make: Make, overflow: int = -1, closures: bool = False, model: Any = None
) -> tuple[Tensor, int]:
    """A loop that knows nothing of precision: parameters and the number of the
    scheduler's steps.
    """
    model = model or net()
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    device = next(model.parameters()).device
    for index, x in enumerate(batch.to(device) for batch in batches()):

        def closure(x: Tensor = x, index: int = index) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean() * (1e38 if index == overflow else 1.0)
            loss.backward()
            clip_grad_norm_(model.parameters(), 0.5)
            return loss

        if closures:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        scheduler.step()
    return parameter_values(model), scheduler.last_epoch


def by_hand(
    make: Make, dtype: torch.dtype, overflow: int = -1, device: str = "cpu"
) -> tuple[Tensor, int]:
    model = net().to(device)
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)
    for index, x in enumerate(batches()):
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            output = model(x.to(device))
        loss = output.float().square().mean() * (1e38 if index == overflow else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.5)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            scheduler.step()
    return parameter_values(model), scheduler.last_epoch
