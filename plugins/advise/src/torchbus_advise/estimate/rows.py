"""One row of the table: a plan, what it needs and how fast it would be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchbus_advise.estimate.hardware import Gpu, Pace, pace
from torchbus_advise.estimate.memory import Memory, activations, memory
from torchbus_advise.estimate.plans import Installed, Plan, plans, sent_bytes
from torchbus_advise.observing.facts import Facts

AS_FAST = 1.05
"""Rows within 5 % of the fastest are equals: the estimate is no better than that."""
MOST_RANKS = 1024


@dataclass(frozen=True)
class Choice:
    """``row``: None if nothing fits any number of GPUs. ``needs_ranks``: the number of GPUs with
    which something fits, if it is more than was asked for. ``needs_batch``: the batch of a rank
    with which the row fits, if it is less than the script's."""

    row: Row | None
    needs_ranks: int | None = None
    needs_batch: int | None = None


def fastest(rows: Sequence[Row]) -> Row | None:
    """Of those that fit the one that is fastest for each sample, and of equals the first."""
    fitting = [row for row in rows if row.fits and row.plan.accumulated == 1]
    if not fitting:
        return None
    least_s = min(row.seconds_per_sample for row in fitting)
    return next(row for row in fitting if row.seconds_per_sample <= AS_FAST * least_s)


def choose(rows_for: Callable[[int], Sequence[Row]], ranks: int) -> Choice:
    """``rows_for``: the rows of a number of ranks."""
    rows = rows_for(ranks)
    best = fastest(rows)
    if best is not None:
        return Choice(best)
    smaller = [row for row in rows if row.largest_batch and row.plan.accumulated == 1]
    if smaller:
        largest = max(smaller, key=lambda row: row.largest_batch)
        return Choice(largest, needs_batch=largest.largest_batch)
    more = ranks * 2
    while more <= MOST_RANKS:
        best = fastest(rows_for(more))
        if best is not None:
            return Choice(best, needs_ranks=more)
        more *= 2
    return Choice(None)


GIB = 2**30
FILLED = 0.9
"""Of a GPU's memory, what is planned for: the rest is for kernels, the allocator and the
context."""


@dataclass(frozen=True)
class Machine:
    """``ranks`` of them, ``nodes`` machines."""

    gpu: Gpu
    ranks: int
    nodes: int = 1

    @property
    def room_bytes(self) -> float:
        return self.gpu.memory_gib * GIB * FILLED


@dataclass(frozen=True)
class Row:
    """``batch``: that of a rank, in samples; 1 stands for the script's own if its size is unknown.
    ``largest_batch``: the largest that fits, 0 if none does."""

    plan: Plan
    machine: Machine
    batch: int
    memory: Memory
    sent_bytes: int
    pace: Pace
    largest_batch: int

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.machine.room_bytes

    @property
    def seconds_per_sample(self) -> float:
        return self.pace.step_s / self.batch


def rows(facts: Mapping[str, Facts], there: Installed, machine: Machine) -> list[Row]:
    """``facts``: what was observed in each precision."""
    first = facts["32"]
    found = plans(
        there, machine.ranks, machine.nodes, first.blocks, list(facts), not first.hindrances
    )
    return [_row(facts, plan, machine) for plan in found]


def _row(facts: Mapping[str, Facts], plan: Plan, machine: Machine) -> Row:
    first, seen = facts["32"], facts[plan.precision]
    batch = max((one.samples or 1) for one in first.passes)
    fixed, each = activations(seen.passes, plan)
    per_node = -(-machine.ranks // machine.nodes)
    divided_by = per_node if plan.strategy.hybrid else machine.ranks
    held = memory(first, plan, divided_by, round(fixed + each * batch))
    sent = sent_bytes(first, plan, machine.ranks, per_node)
    flops, again = _flops_of_a_batch(first, batch)
    speed = pace(plan, flops, again, sent, machine.gpu)
    room = machine.room_bytes - (held.total - held.activations) - fixed
    largest = int(room // each) if each else batch
    return Row(plan, machine, batch, held, sent, speed, max(0, largest))


def _flops_of_a_batch(facts: Facts, batch: int) -> tuple[float, float]:
    """Of all passes that one step makes, of whole batches."""
    whole = [one for one in facts.passes if (one.samples or 1) == batch]
    steps = facts.steps * len(whole) / len(facts.passes)
    flops, again = sum(one.flops for one in whole), sum(one.block_flops for one in whole)
    return flops / steps, again / steps
