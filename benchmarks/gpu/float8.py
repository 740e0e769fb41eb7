"""(f) ``precision="fp8"`` on layers that are large enough for it: milliseconds per step."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from common import arguments, device, in_session, row, seconds_per_step
from torch import Tensor, nn

PART = "wide layers"
PRECISIONS = {"bf16": "bf16-mixed", "fp8": "fp8"}


def make(width: int) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
    return nn.Sequential(*layers).to(device())


def in_float8(model: nn.Module) -> nn.Module:
    """By hand, with the same config as the session's."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = dataclasses.replace(
        Float8LinearConfig.from_recipe_name("tensorwise"), pad_inner_dim=True
    )
    return convert_to_float8_training(model, config=config)


def step_of(model: nn.Module, x: Tensor, compiles: bool, by_hand: bool) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    run = torch.compile(model) if compiles else model
    autocast: Any = (
        (lambda: torch.autocast(device().type, torch.bfloat16)) if by_hand else nullcontext
    )

    def step() -> None:
        optimizer.zero_grad()
        with autocast():
            output = run(x)
        output.float().square().mean().backward()
        optimizer.step()

    return step


def main() -> None:
    small = arguments().small
    width, tokens, steps = (64, 32, 1) if small else (4096, 8192, 10)
    x = torch.randn(tokens, width, device=device())
    names = ["bf16", "fp8"] if importlib.util.find_spec("torchao") and not small else ["bf16"]
    ways = [(name, False) for name in names] + ([("fp8", True)] if "fp8" in names else [])
    for name, compiles in ways:
        model = in_float8(make(width)) if name == "fp8" else make(width)
        by_hand = seconds_per_step(step_of(model, x, compiles, True), steps, 3) * 1e3
        what = f"{name}, compile" if compiles else name
        row(PART, f"by hand, {what}", by_hand, "ms")
        with in_session(precision=PRECISIONS[name]):
            step = step_of(make(width), x, compiles, False)
            row(PART, f"session, {what}", seconds_per_step(step, steps, 3) * 1e3, "ms", by_hand)
            del step


if __name__ == "__main__":
    main()
