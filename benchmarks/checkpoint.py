"""What a checkpoint costs in the step that writes it, and what having the plugin costs in every
other step.

    python benchmarks/checkpoint.py [--megabytes 100] [--rounds 5] [--folder DIR]

An MLP of that size with Adam: a checkpoint is three times as large. "written by hand" is torch.save
of the state_dicts of both, without a checksum, a flush to the disk or a rename.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rounds import table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

WIDTH, STEPS, SAVE_AT = 1024, 12, 8


def train(megabytes: int, save: Callable[[int, nn.Module, Any], None]) -> list[float]:
    """Seconds of each step, what happens at its end included."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(max(1, megabytes // 4))))
    optimizer = torch.optim.Adam(model.parameters())
    times = []
    for step, (x,) in enumerate(
        DataLoader(TensorDataset(torch.randn(STEPS + 1, WIDTH)), batch_size=1)
    ):
        times.append(time.perf_counter())
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        save(step, model, optimizer)
    return [end - begin for begin, end in pairwise(times)]


def nothing(step: int, model: nn.Module, optimizer: Any) -> None:
    return


def plain(megabytes: int, folder: Path) -> list[float]:
    return train(megabytes, nothing)


def by_hand(megabytes: int, folder: Path) -> list[float]:
    def save(step: int, model: nn.Module, optimizer: Any) -> None:
        if step == SAVE_AT:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                folder / "by_hand.pt",
            )

    return train(megabytes, save)


def in_session(megabytes: int, folder: Path, **options: Any) -> list[float]:
    with session(checkpoint=folder, every_n_steps=SAVE_AT + 1, **options):
        return train(megabytes, nothing)


def in_background(megabytes: int, folder: Path) -> list[float]:
    return in_session(megabytes, folder, async_save=True)


CONTENDERS = {
    "nothing": plain,
    "written by hand": by_hand,
    "checkpoint": in_session,
    "async_save": in_background,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=100, help="of parameters (default: 100)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="how often each contender runs (default: 5)"
    )
    parser.add_argument(
        "--folder", type=Path, help="where to write (default: the system's temporary folder)"
    )
    given = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(given.rounds):
        for name, contender in CONTENDERS.items():
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                times = contender(given.megabytes, Path(folder))
            found[name].append((statistics.median(times[2:SAVE_AT]), times[SAVE_AT]))
    rows = [
        [
            name,
            *(f"{1e3 * statistics.median(values):.1f} ms" for values in zip(*pairs, strict=True)),
        ]
        for name, pairs in found.items()
    ]
    print(
        table(
            f"{given.megabytes} MB of parameters",
            ["", "other steps", "the step with the checkpoint"],
            rows,
        )
    )


if __name__ == "__main__":
    main()
