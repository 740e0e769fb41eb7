"""What the parts of the kit share: the device, the clock, rows of the table."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

ROUNDS = 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="few steps of small models")
    parser.add_argument("--sim", action="store_true", help="on the simulated accelerator")
    given = parser.parse_args()
    if given.sim:
        import torchbus_simulator as accelerator

        accelerator.load(devices=2)
    return given


def device() -> torch.device:
    found = torch.accelerator.current_accelerator()
    if found is None:
        raise SystemExit("torch sees no accelerator: pass --sim, or see `torchbus doctor`")
    return torch.device(found.type, 0)


def row(part: str, what: str, value: float, unit: str, by_hand: float | None = None) -> None:
    """Report a figure to the kit, and its ratio to the same loop by hand."""
    ratio = None if by_hand is None else value / by_hand
    found = {"part": part, "what": what, "value": value, "unit": unit, "ratio": ratio}
    print("ROW " + json.dumps(found), flush=True)


def seconds_per_step(step: Callable[[], Any], steps: int, rounds: int = ROUNDS) -> float:
    """The median of some rounds, after one to warm up."""
    told = []
    for _ in range(rounds + 1):
        torch.accelerator.synchronize()
        begun = time.perf_counter()
        for _ in range(steps):
            step()
        torch.accelerator.synchronize()
        told.append((time.perf_counter() - begun) / steps)
    return statistics.median(told[1:])


def peak_mib() -> float:
    return torch.accelerator.max_memory_allocated() / 2**20


@contextmanager
def in_session(*plugins: Any, **options: Any) -> Iterator[Any]:
    """A session on one device; without options, the loop by hand."""
    from torchbus import session

    with session(*plugins, **({"devices": 1, "strategy": None} | options)) as s:
        yield s
