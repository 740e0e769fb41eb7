"""One row of the table: a plan, what it needs and how fast it would be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchbus_advise.estimate.hardware import Gpu
from torchbus_advise.estimate.memory import Memory, activations, memory
from torchbus_advise.estimate.pace import Pace, pace
from torchbus_advise.estimate.plans import Installed, Plan, plans
from torchbus_advise.estimate.traffic import sent_bytes
from torchbus_advise.observing.facts import Facts

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
