"""Parameters that are clamped by hand after each step, under stage 3 and in one process."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torchbus import session

LIMIT = 0.2


def train(clamp: Callable[[nn.Module], None]) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()
        clamp(model)
    return model


def by_hand(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-LIMIT, LIMIT)


def by_state(model: nn.Module) -> None:
    state = {name: one.clamp(-LIMIT, LIMIT) for name, one in model.state_dict().items()}
    model.load_state_dict(state)


def gathered(model: nn.Module) -> None:
    import deepspeed  # it logs when it is imported by itself

    with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
        by_hand(model)


plain = train(by_hand)
for clamp in (by_state, gathered):
    with session(strategy="deepspeed_stage_3", devices=2, launch="fork", accelerator="cpu"):
        model = train(clamp)
        shapes = [(tuple(one.shape), one.numel()) for one in model.parameters()]
        assert shapes == [((2, 3), 6), ((2,), 2)], shapes
        assert repr(model.weight)
        model.to("cpu")
    assert type(model.weight) is nn.Parameter
    alike = [
        torch.allclose(one, other)
        for one, other in zip(model.parameters(), plain.parameters(), strict=True)
    ]
    print(clamp.__name__, all(alike))
