"""How much Python a session runs in a steady step of two ranks: counted, so a busy machine does
not matter.

    python benchmarks/step_calls.py [--loops NAME ...] [--steps 20] [--functions 40] [--json FILE]

Rank 0 counts, in its main thread, from the end of one step to the end of another, in mid-run:

- calls: of Python functions of torchbus, generators that go on and list comprehensions included
  (Python 3.12 inlines these);
- others: calls that those make of Python functions outside of torchbus and torch (``weakref``);
- builtins: their calls of functions in C;
- opcodes: instructions of Python's virtual machine in torchbus's functions, from a second count.

The numbers do not depend on the machine or its load. By hand, the functions of
``DistributedDataParallel`` are counted in the place of torchbus's; one rank runs the same as two.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch
import torch.distributed as dist
from models import labels, mlp
from rounds import silence, table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WIDTH, BATCH, WINDOW, WARMUP = 64, 32, 4, 32
KINDS = ("calls", "others", "builtins", "opcodes")
Key = tuple[str, str]


def is_in(frame: FrameType | None, *packages: str) -> bool:
    return frame is not None and str(frame.f_globals.get("__name__")).startswith(packages)


class Count:
    """Counts functions of these packages while it is on. ``of``: for each kind, by code."""

    def __init__(self, *packages: str) -> None:
        self._packages = packages
        self.of: dict[str, Counter[CodeType]] = {kind: Counter() for kind in KINDS}

    def _counts(self, frame: FrameType | None) -> bool:
        return is_in(frame, *self._packages)

    @contextmanager
    def calls(self) -> Iterator[None]:
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            if self._counts(frame):
                self.of["calls"][frame.f_code] += 1
            elif self._counts(frame.f_back) and not is_in(frame, "torch", "__main__"):
                assert frame.f_back is not None
                self.of["others"][frame.f_back.f_code] += 1
        elif event == "c_call" and self._counts(frame):
            self.of["builtins"][frame.f_code] += 1

    @contextmanager
    def opcodes(self) -> Iterator[None]:
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "call" and self._counts(frame):
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return self._trace
        if event == "opcode":
            self.of["opcodes"][frame.f_code] += 1
        return None if event == "call" else self._trace


def counted(batches: Any, count: Count, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    iterator = iter(batches)
    for _ in range(WARMUP):
        yield next(iterator)
    for kind in (count.calls, count.opcodes):
        with kind():
            for _ in range(steps):
                yield next(iterator)


def train(batches: Any, wrap: Callable[[nn.Module], nn.Module] = lambda model: model) -> None:
    torch.manual_seed(0)
    model = wrap(mlp(2, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


def loader(steps: int) -> Any:
    rows = 2 * BATCH * (WARMUP + 2 * steps + WINDOW)
    return DataLoader(TensorDataset(torch.randn(rows, WIDTH), labels(rows)), BATCH, shuffle=True)


def memory(steps: int) -> Any:
    return [(torch.randn(BATCH, WIDTH), labels(BATCH))] * (WARMUP + 2 * steps)


HAND = "by hand, a DataLoader"
LOOPS: dict[str, tuple[Callable[[int], Any], dict[str, Any]]] = {
    HAND: (loader, {}),
    "ddp, batches in memory": (memory, {"strategy": "ddp", "devices": 2}),
    "ddp, a DataLoader": (loader, {"strategy": "ddp", "devices": 2}),
    "ddp, windows of 4 batches": (
        loader,
        {"strategy": "ddp", "devices": 2, "accumulate_grad_batches": WINDOW},
    ),
    "one rank, windows of 4 batches": (
        memory,
        {"devices": 1, "accumulate_grad_batches": WINDOW},
    ),
    "one rank, ddp": (loader, {"strategy": "ddp", "devices": 1}),
}


def measure(name: str, steps: int) -> Count:
    from torchbus import session

    make, options = LOOPS[name]
    if name == HAND:
        return by_hand(make(steps), steps)
    count = Count("torchbus")
    with session(accelerator="cpu", launch="fork", **options):
        train(counted(make(steps), count, steps))
    return count


def by_hand(batches: Any, steps: int) -> Count:
    count = Count("torch.nn.parallel", "torch.distributed", "torch.utils.data.distributed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    train(counted(batches, count, steps), DistributedDataParallel)
    dist.destroy_process_group()
    return count


def name_of(code: CodeType) -> str:
    path = code.co_filename.rpartition("/src/")[2].rpartition("/site-packages/")[2]
    module = path.removesuffix(".py").replace("/", ".")
    return f"{module}:{getattr(code, 'co_qualname', code.co_name)}"


def totals(count: Count, steps: int) -> dict[str, float]:
    return {kind: count.of[kind].total() / steps for kind in KINDS}


def by_function(count: Count, steps: int, most: int) -> list[list[str]]:
    codes = sorted(set().union(*count.of.values()), key=lambda code: -count.of["opcodes"][code])
    return [
        [name_of(code), *(f"{count.of[kind][code] / steps:.2f}" for kind in KINDS)]
        for code in codes[:most]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=list(LOOPS), metavar="NAME")
    parser.add_argument("--steps", type=int, default=20, help="counted batches, a multiple of 4")
    parser.add_argument("--functions", type=int, default=0, help="list this number of each loop")
    parser.add_argument("--json", metavar="FILE", help="write the totals there too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    silence()
    found = {}
    for name in options.loops:
        count = measure(name, options.steps)
        found[name] = totals(count, options.steps)
        if options.functions:
            rows = by_function(count, options.steps, options.functions)
            print(table(name, ["function", *KINDS], rows), flush=True)
    rows = [[name, *(f"{one[kind]:.1f}" for kind in KINDS)] for name, one in found.items()]
    print(table("For each batch, on rank 0", ["loop", *KINDS], rows), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
