"""What plugins cost against the same written by hand, on one thread.

    python benchmarks/plugins.py [--rounds 30] [--steps 100] [--quantile 0.5] [--json FILE]

The loop and its batches in memory are overhead.py's. A step here is a window of 4 batches, divided
by 4, so that the real step at the end of a window of accumulation counts for its part. The first
line of each table is written by hand; "the loop alone" is the one that the session gets, which
without it steps after every batch.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from models import labels
from overhead import BATCH, WIDTH, Contender, Source, in_session, make, plain
from rounds import Batches, Stopwatch, add_options, interleave, summarise, table, write_json
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

WINDOW, WARMUP = 4, 20
HAND = "by hand"


class Windows(Batches):
    """Four batches for each tick of the watch."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield from [batch] * WINDOW


def clip(batches: Source) -> None:
    model, optimizer = make()
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def accumulate(batches: Source) -> None:
    model, optimizer = make()
    for index, (x, y) in enumerate(batches):
        (cross_entropy(model(x), y) / WINDOW).backward()
        if (index + 1) % WINDOW == 0:
            optimizer.step()
            optimizer.zero_grad()


def mixed(batches: Source, dtype: torch.dtype) -> None:
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype) if dtype != torch.float32 else contextlib.nullcontext():
            output = model(x)
        scaler.scale(cross_entropy(output.float(), y)).backward()
        scaler.step(optimizer)
        scaler.update()


def averaged(batches: Source) -> None:
    model, optimizer = make()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        average.update_parameters(model)


def warmed(batches: Source) -> None:
    model, optimizer = make()
    rates = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        rates.step()


def session(**options: Any) -> Contender:
    return functools.partial(in_session, **options)


TABLES: dict[str, dict[str, Contender]] = {
    "Nothing": {HAND: plain, "torchbus": plain},
    "Throughput": {
        HAND: plain,
        "a session": session(),
        "torchbus": session(throughput_every=50, flops=True),
    },
    "Profiling, outside of the recorded steps": {
        HAND: plain,
        "a session": session(),
        "torchbus": session(profile={"skip_first": 10**9}),
    },
    "An exponential moving average": {
        HAND: averaged,
        "the loop alone": plain,
        "a session": session(),
        "torchbus": session(ema_decay=0.999),
    },
    "Warm-up": {
        HAND: warmed,
        "the loop alone": plain,
        "a session": session(),
        "torchbus": session(scale_lr="linear", warmup_steps=10**6),
    },
    "Unfreezing, with all unfrozen": {
        HAND: plain,
        "a session": session(),
        "torchbus": session(unfreeze={"0.*": 1}),
    },
    "Clipping": {HAND: clip, "torchbus": session(gradient_clip_val=1.0)},
    "Accumulation over 4": {
        HAND: accumulate,
        "the loop alone": plain,
        "torchbus": session(accumulate_grad_batches=WINDOW),
    },
    "bf16-mixed": {
        HAND: functools.partial(mixed, dtype=torch.bfloat16),
        "torchbus": session(precision="bf16-mixed"),
    },
    "16-mixed": {
        HAND: functools.partial(mixed, dtype=torch.float16),
        "torchbus": session(precision="16-mixed"),
    },
}


def timed(contender: Contender, options: argparse.Namespace) -> float:
    watch = Stopwatch(WARMUP, options.steps, options.quantile)
    torch.manual_seed(1)
    contender(Windows((torch.randn(BATCH, WIDTH), labels(BATCH)), watch))  # type: ignore[arg-type]
    return watch.seconds_per_step() / WINDOW


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, rounds=30)
    parser.add_argument(
        "--steps", type=int, default=100, help="timed windows of each run (default: %(default)s)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results = {}
    for title, contenders in TABLES.items():
        calls = {
            name: functools.partial(timed, contender, options)
            for name, contender in contenders.items()
        }
        rows = results[title] = summarise(interleave(calls, options.rounds), HAND)
        cells = [
            [
                row.contender,
                f"{row.seconds * 1e6:.1f}",
                f"{row.added * 1e6:+.1f}",
                f"{row.ratio:.3f}",
            ]
            for row in rows
        ]
        print(table(title, ["contender", "us/batch", "added us", "ratio"], cells), flush=True)
    write_json(results, options)


if __name__ == "__main__":
    main()
