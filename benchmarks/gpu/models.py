"""(b), (e) Steps of larger models by hand and in a session: samples per second, and peak memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from common import arguments, device, in_session, peak_mib, row, seconds_per_step
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.path = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.short = (
            nn.Identity()
            if stride == 1 and inputs == out
            else nn.Sequential(nn.Conv2d(inputs, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.path(x) + self.short(x))


def resnet(depths: tuple[int, ...], width: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for stage, depth in enumerate(depths):
        for block in range(depth):
            layers.append(Bottleneck(inputs, width << stage, 1 + (stage > 0 and block == 0)))
            inputs = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, length: int, words: int, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, max(1, width // 64), 4 * width, 0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.embed(tokens) + self.place.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(
            length, device=x.device, dtype=x.dtype
        )
        for block in self.blocks:
            x = (
                checkpoint(block, x, mask, use_reentrant=False)
                if self.recompute
                else block(x, mask)
            )
        return self.head(x)


def measure(
    part: str,
    make: Callable[[], Any],
    inputs: Tensor,
    targets: Tensor,
    small: bool,
    compiles_too: bool = False,
) -> None:
    """Each way of training the model, in bf16. To compile a model takes half a minute."""
    ways = [("by hand", False, False), ("session", True, False)]
    if compiles_too and not small:  # needs triton
        ways += [("by hand, compile", False, True), ("session, compile", True, True)]
    by_hand: dict[bool, float] = {}
    for name, uses_session, compiles in ways:
        torch.accelerator.reset_peak_memory_stats()
        options = {"precision": "bf16-mixed"} if uses_session else {}
        with in_session(**options) if uses_session else torch.enable_grad():
            step = training_step(make(), inputs, targets, compiles, not uses_session)
            rate = len(inputs) / seconds_per_step(step, 1 if small else 20, 1 if small else 5)
        by_hand.setdefault(compiles, rate)
        row(part, name, rate, "samples/s", by_hand[compiles])
        row(part, f"{name}: peak memory", peak_mib(), "MiB")
        del step


def training_step(
    model: nn.Module, inputs: Tensor, targets: Tensor, compiles: bool, autocasts: bool
) -> Callable[[], None]:
    model = model.to(device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    run = torch.compile(model) if compiles else model

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device().type, torch.bfloat16, enabled=autocasts):
            outputs = run(inputs)
        loss = nn.functional.cross_entropy(outputs.float().flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    small = arguments().small
    size, batch = (32, 2) if small else (224, 64)
    images = torch.randn(batch, 3, size, size, device=device())
    labels = torch.randint(0, 1000, (batch,), device=device())
    depths, width = ((1, 1), 8) if small else ((3, 4, 6, 3), 64)
    measure("ResNet-50-like, bf16", lambda: resnet(depths, width), images, labels, small)
    layers, width, length, words = (1, 64, 16, 256) if small else (12, 768, 1024, 50304)
    tokens = torch.randint(0, words, (2 if small else 8, length), device=device())
    for recompute in (False, True):
        name = f"GPT-2-small-like, bf16{', activation checkpointing' if recompute else ''}"
        make = lambda: GPT(layers, width, length, words, recompute)  # noqa: B023, E731
        measure(name, make, tokens, tokens, small, compiles_too=not recompute)


if __name__ == "__main__":
    main()
