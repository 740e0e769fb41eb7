"""What follows from the choice: batch, learning rate, precision, loader, the lint's findings."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence

from torchbus_advise.estimate.choice import Choice
from torchbus_advise.estimate.plans import PRECISIONS
from torchbus_advise.estimate.rows import Row
from torchbus_advise.observing.facts import Facts
from torchbus_advise.text.amounts import seconds

ADAPTIVE = ("adam", "lamb", "adagrad", "rmsprop", "lion", "adadelta", "sophia")


def hints(
    choice: Choice,
    rows: Sequence[Row],
    facts: Facts,
    real: Facts | None,
    options: Collection[str],
) -> list[str]:
    row = choice.row
    if row is None:
        return []
    return [
        line
        for line in (
            largest_batch(row, rows, facts),
            precision(row),
            learning_rate(row, facts, options),
            workers(row, real or facts),
        )
        if line
    ]


def largest_batch(row: Row, rows: Sequence[Row], facts: Facts) -> str:
    if facts.passes[0].samples is None:
        times = row.largest_batch
        return (
            f"batch: {times} times the script's would fit (no DataLoader was seen to count samples)"
        )
    there = None if facts.loader is None else facts.loader.samples
    if there is not None and row.largest_batch * row.machine.ranks >= there:
        return (
            f"batch: all {there} samples of the data set fit into one step of {row.machine.ranks}"
            f" ranks; the script has {row.batch} on each"
        )
    most = max(rows, key=lambda one: one.largest_batch)
    more = f"; {most.largest_batch} with {most.plan.label}" if most.plan != row.plan else ""
    return (
        f"batch: the largest that fits is {row.largest_batch} samples on each rank, "
        f"{row.largest_batch * row.machine.ranks} a step; the script has {row.batch}{more}"
    )


def precision(row: Row) -> str:
    if row.plan.precision == "32":
        return ""
    return (
        f"precision: with {PRECISIONS[row.plan.precision]} products have 8 significant bits. Leave "
        "it out for the numbers of today, if a row without it fits"
    )


def learning_rate(row: Row, facts: Facts, options: Collection[str]) -> str:
    ranks = row.machine.ranks
    if ranks == 1 or not facts.optimizers:
        return ""
    first = facts.optimizers[0]
    rate = first.rates[0]
    usual = "sqrt" if any(word in first.name.lower() for word in ADAPTIVE) else "linear"
    how = f'; scale_lr="{usual}", warmup_steps=... does it' if "scale_lr" in options else ""
    keep = '; batch="global" keeps batch and rate as they are' if "batch" in options else ""
    return (
        f"learning rate: a step has {ranks} times the samples. Linear scaling makes {rate:g} into "
        f"{rate * ranks:.3g} (Goyal et al. 2017: SGD on ImageNet, with warm-up; beyond batches of "
        f"8192 accuracy fell). Square-root scaling makes it {rate * math.sqrt(ranks):.3g} (You et "
        "al. 2019, with LAMB; AdamW fell short at their largest batches). Neither is a law: "
        f"compare both{how}{keep}"
    )


def workers(row: Row, facts: Facts) -> str:
    if facts.loader is None or facts.loader.load_s is None:
        return ""
    load_s, step_s = facts.loader.load_s, row.pace.step_s
    wanted = math.ceil(load_s / step_s) if load_s > 0.05 * step_s else 0
    return (
        f"loader: one process of this machine ({_cores()} cores) reads a batch in "
        f"{seconds(load_s)}, and a step is estimated at {seconds(step_s)}: num_workers={wanted} on "
        f"each rank; the script has {facts.loader.workers}"
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
