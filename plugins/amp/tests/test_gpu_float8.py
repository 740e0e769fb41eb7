"""``precision="fp8"`` on a GPU that multiplies float8, against torchao by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torchbus import session

AO = pytest.importorskip("torchao", reason="torchao is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch, for torchao and inductor
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
        reason="needs a GPU",
    ),
]
RECIPES = ["tensorwise", "rowwise", "rowwise_with_gw_hp"]
SIZES = [32, 32, 7]
"""Of the batches. The last one is no multiple of 16."""


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 10)
    ).cuda()


def train(model: nn.Module, around: Callable[[], Any] = nullcontext) -> tuple[Tensor, list[float]]:
    """Returns the parameters, and the losses of the first batches of all epochs."""
    data = torch.Generator(device="cuda").manual_seed(1)
    batches = [
        (
            torch.randn(size, 64, device="cuda", generator=data),
            torch.randn(size, 10, device="cuda", generator=data),
        )
        for size in SIZES
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        for number, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            with around():
                output = model(x)
            loss = mse_loss(output.float(), y)
            loss.backward()
            optimizer.step()
            losses += [loss.item()] if number == 0 else []
    return torch.cat([value.flatten() for value in model.parameters()]).detach(), losses


def by_hand(recipe: str) -> Tensor:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(recipe), pad_inner_dim=True)
    model = net()
    convert_to_float8_training(
        model, config=config, module_filter_fn=lambda layer, _: layer.out_features % 16 == 0
    )
    return train(model, lambda: torch.autocast("cuda", torch.bfloat16))[0]


@pytest.mark.parametrize("recipe", RECIPES)
def test_equals_torchao_by_hand(recipe: str) -> None:
    with session(precision="fp8", fp8_config=recipe, devices=1) as s:
        model = net()
        found, losses = train(model)
        told = " ".join(s.explain().split())
    assert torch.equal(found, by_hand(recipe))
    assert losses[-1] < losses[0] / 2
    assert "2 linear layers multiply in float8" in told


def test_it_is_not_bfloat16() -> None:
    with session(precision="fp8", devices=1):
        found = train(net())[0]
    with session(precision="bf16-mixed", devices=1):
        other = train(net())[0]
    apart = float((found - other).abs().max() / other.abs().max())
    assert 1e-4 < apart < 0.5


def test_a_compiled_model() -> None:
    with session(precision="fp8", devices=1):
        model = net()
        train(torch.compile(model))
        assert all(value.isfinite().all() for value in model.parameters())
