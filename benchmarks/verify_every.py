"""What ``verify_every`` costs: in the steps that it checks, and in the steps between.

    python benchmarks/verify_every.py [--rounds 8] [--devices 2]

Each contender trains the same model in a separate session, on CPU ranks started by fork. They
take turns, in rounds whose order rotates. A step is timed on rank 0, from one batch to the next.
``--cpu`` takes the CPU time of rank 0's process instead, for a machine that others use too.

- ddp: without the option; it runs twice.
- between: the steps that ``verify_every=10`` does not check.
- checked: those that it checks.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from models import CLASSES, Transformer, mlp
from rounds import Times, add_options, show, silence, summarise, write_json
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

EVERY, WARMUP, STEPS, BATCH = 10, 10, 50, 32
CONTENDERS = ("ddp", "ddp, again", "between", "checked")
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "MLP 6x512": (lambda: mlp(6, 512), lambda count: torch.randn(count, 512)),
    "transformer": (
        lambda: Transformer(2, 64, 1000),
        lambda count: torch.randint(1000, (count, 16)),
    ),
}


def steps(model_name: str, given: argparse.Namespace, **options: int) -> list[float]:
    """Seconds of each step of a session, as rank 0 sees them."""
    make, inputs = MODELS[model_name]
    torch.manual_seed(0)
    count = (WARMUP + STEPS + 1) * BATCH * given.devices
    data = TensorDataset(inputs(count), torch.randint(CLASSES, (count,)))
    asked: list[float] = []
    clock = time.process_time if given.cpu else time.perf_counter
    with session(
        strategy="ddp", devices=given.devices, accelerator="cpu", launch="fork", **options
    ):
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in DataLoader(data, batch_size=BATCH):
            asked.append(clock())
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return [end - begun for begun, end in pairwise(asked)]


def one_round(model_name: str, given: argparse.Namespace, first: int) -> dict[str, float]:
    """Seconds a step by contender; ``first`` turns their order."""
    found: dict[str, float] = {}
    turns = ["ddp", "ddp, again", "verify_every"]
    for name in turns[first % 3 :] + turns[: first % 3]:
        gc.collect()
        if name != "verify_every":
            found[name] = low(steps(model_name, given)[WARMUP:], given.quantile)
            continue
        numbered = list(enumerate(steps(model_name, given, verify_every=EVERY), 1))[WARMUP:]
        checked = [seconds for number, seconds in numbered if number % EVERY == 0]
        between = [seconds for number, seconds in numbered if number % EVERY]
        found |= {"checked": low(checked, given.quantile), "between": low(between, given.quantile)}
    return found


def low(seconds: list[float], quantile: float) -> float:
    return sorted(seconds)[int(quantile * (len(seconds) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, rounds=8)
    parser.add_argument("--devices", type=int, default=2, help="ranks (default: %(default)s)")
    parser.add_argument("--cpu", action="store_true", help="CPU time instead of wall time")
    given = parser.parse_args()
    silence()
    results = {}
    for model_name in MODELS:
        rounds = [one_round(model_name, given, number) for number in range(given.rounds)]
        times: Times = {name: [one[name] for one in rounds] for name in CONTENDERS}
        rows = results[model_name] = summarise(times, "ddp")
        title = f"{model_name}, {given.devices} ranks: a step under verify_every={EVERY}"
        cells = {
            one.contender: (
                f"{one.seconds * 1e3:.2f}",
                f"{one.added * 1e3:+.2f}",
                f"{one.ratio:.3f}",
                f"{one.low:.3f} to {one.high:.3f}",
            )
            for one in rows
        }
        show(title, ("steps", "ms", "added ms", "ratio", "quartiles"), cells, CONTENDERS)
    write_json(results, given)


if __name__ == "__main__":
    main()
