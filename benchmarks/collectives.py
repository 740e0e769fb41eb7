"""How often ranks communicate in a window of four batches: torchbus, DDP by hand, Fabric,
Accelerate.

    torchrun --nproc-per-node 2 benchmarks/collectives.py

A window is four batches and one real step, of an MLP with SGD. Counted are the calls of the process
group (as torch's profiler sees them, on rank 0) in each batch of the third window, when all set-up
is over.

- by hand: ``DistributedDataParallel`` and ``no_sync()`` in all batches but the last.
- torchbus: an unchanged loop under ``accumulate_grad_batches=4``, which prints the global loss of
  each real step as well.
- torchbus, accumulating: a loop with its own windows, under ``s.accumulating((i + 1) % 4 != 0)``.
- Fabric: ``fabric.no_backward_sync(model, enabled=...)``.
- Accelerate: ``Accelerator(gradient_accumulation_steps=4)`` and ``accelerator.accumulate(model)``.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from models import labels, mlp
from rounds import installed, table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

WINDOW, WINDOWS, WIDTH, BATCH = 4, 12, 64, 32
Counts = list[int]


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = mlp(2, WIDTH)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def batches(counts: Counts) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Notes the calls that the loop has made between one batch and the next."""
    for index in range(WINDOW * WINDOWS):
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            yield index, torch.randn(BATCH, WIDTH), labels(BATCH)
        counts.append(
            sum(event.count for event in seen.key_averages() if event.key.startswith("c10d::"))
        )


def by_steps(
    counts: Counts,
    model: Any,
    optimizer: Any,
    backward: Callable[[Tensor], None],
    quiet: Callable[[bool], Any],
    scale: float,
) -> None:
    """A loop that makes its own windows; ``quiet(True)`` surrounds the batches that need no
    communication.
    """
    for index, x, y in batches(counts):
        ends = (index + 1) % WINDOW == 0
        with quiet(not ends):
            backward(cross_entropy(model(x), y) / scale)
        if ends:
            optimizer.step()
            optimizer.zero_grad()


def by_hand(counts: Counts) -> None:
    model, optimizer = make()
    wrapped = nn.parallel.DistributedDataParallel(model)
    by_steps(
        counts,
        wrapped,
        optimizer,
        Tensor.backward,
        lambda quiet: wrapped.no_sync() if quiet else nullcontext(),
        WINDOW,
    )


def torchbus(counts: Counts, **options: Any) -> None:
    from torchbus import session

    with session(strategy="ddp", **options):
        model, optimizer = make()
        for _, x, y in batches(counts):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()


def accumulating(counts: Counts) -> None:
    from torchbus import session

    with session(strategy="ddp") as s:
        by_steps(counts, *make(), Tensor.backward, s.accumulating, WINDOW)


def fabric(counts: Counts) -> None:
    from lightning import Fabric

    launched = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    launched.launch()
    model, optimizer = launched.setup(*make())
    by_steps(
        counts,
        model,
        optimizer,
        launched.backward,
        lambda quiet: launched.no_backward_sync(model, enabled=quiet),
        WINDOW,
    )


def accelerate(counts: Counts) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=WINDOW)
    model, optimizer = accelerator.prepare(*make())
    for _, x, y in batches(counts):
        with accelerator.accumulate(model):
            accelerator.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()


CONTENDERS: dict[str, tuple[Callable[[Counts], None], tuple[str, ...]]] = {
    "by hand: DDP, no_sync": (by_hand, ()),
    "torchbus: every batch a step": (torchbus, ("torchbus_ddp",)),
    "torchbus: accumulate_grad_batches=4": (
        lambda counts: torchbus(counts, accumulate_grad_batches=WINDOW),
        ("torchbus_accumulate",),
    ),
    "torchbus: s.accumulating": (accumulating, ("torchbus_accumulate",)),
    "Lightning Fabric: no_backward_sync": (fabric, ("lightning",)),
    "Accelerate: accumulate": (accelerate, ("accelerate",)),
}


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo")
    lines = []
    for name, (contender, needs) in CONTENDERS.items():
        counts: Counts = []
        if installed(*needs):
            with contextlib.redirect_stdout(None):
                contender(counts)
        last = counts[-WINDOW:]
        lines.append(
            [name, *(map(str, [*last, sum(last)]) if last else ["not installed", *[""] * WINDOW])]
        )
    if dist.get_rank() == 0:
        print(
            table(
                "Collectives of rank 0",
                ["contender", "batch 1", "batch 2", "batch 3", "batch 4", "window"],
                lines,
            ),
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
