"""What each rank keeps: bytes of parameters, gradients and optimizer state, by strategy and number
of ranks.

    python benchmarks/memory.py [--ranks 1 2 4] [--model transformer] [--width 256]

Counted after a step of Adam, from the tensors themselves (of a divided one, the part that is here);
the largest number of any rank. "of whole" is the part of what one process keeps, and "1/N" what
dividing it evenly would give. CPU ranks, started by fork.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

import torch
from models import Transformer, conv_net, mlp
from rounds import table
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import session

DIVIDED = {
    "ddp": (),
    "ddp_sharded": ("optimizer state",),
    "ddp_sharded, shard_gradients": ("parameters", "gradients", "optimizer state"),
    "fsdp": ("parameters", "gradients", "optimizer state"),
}
"""Between two steps: with shard_gradients parameters are whole from forward to backward."""


MODELS: dict[str, tuple[Callable[[int], Module], Callable[[int], Tensor]]] = {
    "transformer": (
        lambda width: Transformer(4, width, 1000),
        lambda _: torch.randint(1000, (4, 16)),
    ),
    "mlp": (lambda width: mlp(3, width), lambda width: torch.randn(8, width)),
    "conv": (lambda width: conv_net(3, width // 8), lambda _: torch.randn(4, 3, 16, 16)),
}
"""By name, a model of a width and a batch for it."""


def bytes_of(tensors: Iterable[Any]) -> int:
    """Of the parts that are here; each storage once."""
    local = [
        tensor.to_local() if hasattr(tensor, "to_local") else tensor
        for tensor in tensors
        if isinstance(tensor, Tensor)
    ]
    return sum(tensor.nbytes for tensor in local)


def one_step(name: str, width: int) -> tuple[Module, Optimizer]:
    """A model after one step of Adam."""
    torch.manual_seed(0)
    make, batch = MODELS[name]
    model = make(width)
    optimizer = torch.optim.Adam(model.parameters())
    model(batch(width)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def kept(strategy: str, ranks: int, model_name: str, width: int) -> dict[str, int]:
    """The largest number of bytes on any rank, by what they are for."""
    name, *options = strategy.split(", ")
    with session(
        strategy=name,
        devices=ranks,
        accelerator="cpu",
        launch="fork",
        **dict.fromkeys(options, True),
    ) as s:
        model, optimizer = one_step(model_name, width)
        found = {
            "parameters": bytes_of(model.parameters()),
            "gradients": bytes_of(parameter.grad for parameter in model.parameters()),
            "optimizer state": bytes_of(
                value for state in optimizer.state.values() for value in state.values()
            ),
        }
        return {name: int(s.reduce(float(count), "max")) for name, count in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--model", choices=MODELS, default="transformer")
    parser.add_argument(
        "--width", type=int, default=256, help="of its layers (default: %(default)s)"
    )
    options = parser.parse_args()
    whole = kept("ddp", 1, options.model, options.width)
    lines = []
    for strategy, divided in DIVIDED.items():
        for ranks in options.ranks:
            for name, count in kept(strategy, ranks, options.model, options.width).items():
                theory = 1 / ranks if name in divided else 1.0
                lines.append(
                    [
                        strategy,
                        str(ranks),
                        name,
                        f"{count / 2**20:.2f}",
                        f"{count / whole[name]:.3f}",
                        f"{theory:.3f}",
                    ]
                )
    print(
        table(
            f"{options.model}, width {options.width}",
            ["strategy", "ranks", "what", "MiB a rank", "of whole", "1/N"],
            lines,
        )
    )


if __name__ == "__main__":
    main()
