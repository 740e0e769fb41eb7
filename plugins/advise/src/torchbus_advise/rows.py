"""One row of the table: a plan, what it needs and how fast it would be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from torchbus_advise.facts import (
    NO_OPTIMIZER,
    ROOT_UNIT,
    ObservedFacts,
    ParameterFacts,
    PassFacts,
)
from torchbus_advise.plans import Installed, StrategyPlan, StrategyTraits, plans, sent_bytes

UNITS_AT_ONCE = 2
"""The number of gathered units: the one that computes, and the next, gathered meanwhile."""


@dataclass(frozen=True)
class MemoryEstimate:
    """The bytes that a rank needs, by part.

    ``parameters``, ``gradients`` and ``states`` exist between steps. ``exchange`` is needed during
    backward: gradient buckets, or gathered units and their gradients. Buffers count as parameters.
    The memory of kernels, allocator and libraries is unknown.
    """

    parameters: int
    gradients: int
    states: int
    activations: int
    exchange: int

    @property
    def total(self) -> int:
        states_bytes = self.parameters + self.gradients + self.states
        return states_bytes + self.activations + self.exchange


def memory(
    facts: ObservedFacts, plan: StrategyPlan, ranks: int, activations: int
) -> MemoryEstimate:
    """Estimate memory. The strategy divides among ``ranks`` ranks (if hybrid, those of a node)."""
    everything, strategy = facts.parameters, plan.strategy
    return MemoryEstimate(
        sum(_part(one, one.bytes, ranks, strategy, strategy.parameters) for one in everything)
        + facts.buffer_bytes,
        sum(
            _part(one, one.gradient_bytes, ranks, strategy, strategy.gradients)
            for one in everything
        ),
        _states(everything, strategy, ranks),
        activations,
        _exchange(everything, plan) if ranks > 1 else 0,
    )


def activations(passes: Sequence[PassFacts], plan: StrategyPlan) -> tuple[float, float]:
    """Return the bytes that do not depend on the batch, and those of each sample.

    If only one batch size was seen, all bytes count as growing with the batch. If batch sizes are
    unknown, the script's batch counts as one sample.
    """
    largest: dict[int, int] = {}
    for one in passes:
        count = one.checkpointed_bytes if plan.checkpointing else one.activation_bytes
        samples = one.samples or 1
        largest[samples] = max(largest.get(samples, 0), count)
    few, many = min(largest), max(largest)
    if few == many:
        return 0.0, largest[many] / many
    each = max(0.0, (largest[many] - largest[few]) / (many - few))
    return max(0.0, largest[many] - each * many), each


def _part(
    one: ParameterFacts, count: int, ranks: int, strategy: StrategyTraits, divided: bool
) -> int:
    """Return the bytes of the first rank, whose part is largest: ``fully_shard`` cuts dim 0."""
    if divided and strategy.flat:
        return ceil(count / ranks)
    if not (divided and one.managed and one.shape) or not one.bytes:
        return count
    rows = one.shape[0]
    return round(count * ceil(rows / ranks) / rows) if rows else 0


def _states(parameters: Sequence[ParameterFacts], strategy: StrategyTraits, ranks: int) -> int:
    if strategy.states and not strategy.parameters and not strategy.flat:
        return _of_owners(parameters, ranks)
    return sum(
        _part(one, one.state_bytes, ranks, strategy, strategy.states) + one.scalar_bytes
        for one in parameters
    )


def _of_owners(parameters: Sequence[ParameterFacts], ranks: int) -> int:
    """Return the largest rank's state bytes under ZeRO's first stage: each parameter, the largest
    first, goes to the rank that has least."""
    bytes_of = Counter(dict.fromkeys(range(ranks), 0))
    for optimizer in {one.optimizer for one in parameters} - {NO_OPTIMIZER}:
        elements = [0] * ranks
        held = [one for one in parameters if one.optimizer == optimizer]
        for one in sorted(held, key=lambda one: -prod(one.shape)):
            rank = elements.index(min(elements))
            elements[rank] += prod(one.shape)
            bytes_of[rank] += one.state_bytes + one.scalar_bytes
    return max(bytes_of.values())


def _exchange(parameters: Sequence[ParameterFacts], plan: StrategyPlan) -> int:
    """Return the bytes for exchange: ddp's buckets are a copy of all gradients; a sharded unit is
    whole while it computes, and so are its gradients."""
    strategy = plan.strategy
    if not strategy.parameters:
        return sum(one.gradient_bytes for one in parameters)
    whole: Counter[int] = Counter()
    gradients: Counter[int] = Counter()
    for one in parameters:
        if one.managed:
            whole[one.unit] += one.bytes
            gradients[one.unit] += one.gradient_bytes
    outermost = whole.pop(ROOT_UNIT, 0)  # the root unit stays gathered until backward
    blocks = sorted(whole.values(), reverse=True)
    gathered = outermost + sum(blocks if strategy.is_whole else blocks[:UNITS_AT_ONCE])
    return round((gathered + max(gradients.values(), default=0)) * plan.gathered_part)


BACKWARD_SHARE = 2 / 3
"""The part of a step's computing during which ddp sends. Sharded strategies send in forward too."""
LEAST_STEP_S = 2e-3
"""The least time of a step, since kernels have to be launched."""


@dataclass(frozen=True)
class StepTime:
    """The estimated time of a step.

    ``efficiency`` is the part of the step in which the GPU computes what the script asked for.
    """

    step_s: float
    efficiency: float


def pace(
    plan: StrategyPlan, flops: float, again_flops: float, sent_bytes: int, gpu: GpuSpec
) -> StepTime:
    """Estimate a step's time. ``again_flops`` are those that checkpointing computes again."""
    useful_s = flops / gpu.flops_per_s(plan.precision)
    again_s = again_flops / gpu.flops_per_s(plan.precision) if plan.checkpointing else 0.0
    sending_s = sent_bytes / gpu.bytes_per_s
    hidden = 1.0 if plan.strategy.parameters else BACKWARD_SHARE
    step_s = useful_s + again_s + max(0.0, sending_s - hidden * (useful_s + again_s))
    step_s = max(step_s, LEAST_STEP_S)
    return StepTime(step_s, useful_s / step_s)


SHARE_OF_PEAK = 0.5
"""The part of a GPU's peak FLOPs that training reaches: an assumption."""
SHARE_OF_LINK = 0.8
"""The part of a link's bandwidth in one direction that a collective reaches: an assumption."""


@dataclass(frozen=True)
class GpuSpec:
    """A GPU, by its data sheet.

    ``float32_tflops`` is for matrix products as torch computes them by default, without TF32.
    ``interconnect_gb_s`` is the bandwidth to other GPUs, both directions together, as in data
    sheets.
    """

    name: str
    memory_gib: float
    float32_tflops: float
    bfloat16_tflops: float
    interconnect_gb_s: float

    def flops_per_s(self, precision: str) -> float:
        peak = self.float32_tflops if precision == "32" else self.bfloat16_tflops
        return peak * 1e12 * SHARE_OF_PEAK

    @property
    def bytes_per_s(self) -> float:
        """The number of bytes that a rank can send in one direction per second."""
        return self.interconnect_gb_s * 1e9 / 2 * SHARE_OF_LINK

    def changed(self, memory_gib: float | None, interconnect_gb_s: float | None) -> GpuSpec:
        return replace(
            self,
            memory_gib=self.memory_gib if memory_gib is None else memory_gib,
            interconnect_gb_s=(
                self.interconnect_gb_s if interconnect_gb_s is None else interconnect_gb_s
            ),
        )


GPUS = {
    "a100": GpuSpec("A100 80 GB", 80, 19.5, 312, 600),
    "h100": GpuSpec("H100 SXM", 80, 67, 989, 900),
    "h200": GpuSpec("H200 SXM", 141, 67, 989, 900),
    "v100": GpuSpec("V100 32 GB", 32, 15.7, 15.7, 300),
    "l4": GpuSpec("L4", 24, 30.3, 121, 64),
}
"""GPUs by name. The V100 has no fast bfloat16."""


AS_FAST = 1.05
"""Rows within 5 % of the fastest count as equally fast: the estimate is not more precise."""
MOST_RANKS = 1024


@dataclass(frozen=True)
class Recommendation:
    """The recommended row of the table.

    ``row`` is None if nothing fits any number of GPUs. ``needs_ranks`` is the number of GPUs with
    which something fits, if that is more than the call asks for. ``needs_batch`` is the batch of a
    rank with which the row fits, if that is smaller than the script's.
    """

    row: PlanRow | None
    needs_ranks: int | None = None
    needs_batch: int | None = None


def fastest(rows: Sequence[PlanRow]) -> PlanRow | None:
    """Return the row that fits and is fastest per sample, the first of equally fast ones."""
    fitting = [row for row in rows if row.fits and row.plan.accumulated == 1]
    if not fitting:
        return None
    least_s = min(row.seconds_per_sample for row in fitting)
    return next(row for row in fitting if row.seconds_per_sample <= AS_FAST * least_s)


def choose(rows_for: Callable[[int], Sequence[PlanRow]], ranks: int) -> Recommendation:
    """Choose a row. ``rows_for`` returns the rows of a number of ranks."""
    rows = rows_for(ranks)
    best = fastest(rows)
    if best is not None:
        return Recommendation(best)
    smaller = [row for row in rows if row.largest_batch and row.plan.accumulated == 1]
    if smaller:
        largest = max(smaller, key=lambda row: row.largest_batch)
        return Recommendation(largest, needs_batch=largest.largest_batch)
    more = ranks * 2
    while more <= MOST_RANKS:
        best = fastest(rows_for(more))
        if best is not None:
            return Recommendation(best, needs_ranks=more)
        more *= 2
    return Recommendation(None)


GIB = 2**30
FILLED = 0.9
"""The part of a GPU's memory that is planned for. The rest is for kernels, the allocator and the
context."""


@dataclass(frozen=True)
class Machine:
    """The GPUs to plan for: ``ranks`` GPUs in ``nodes`` machines."""

    gpu: GpuSpec
    ranks: int
    nodes: int = 1

    @property
    def room_bytes(self) -> float:
        return self.gpu.memory_gib * GIB * FILLED


@dataclass(frozen=True)
class PlanRow:
    """One row of the table.

    ``batch`` is a rank's batch in samples, or 1 for the script's batch if its size is unknown.
    ``largest_batch`` is the largest batch that fits, or 0.
    """

    plan: StrategyPlan
    machine: Machine
    batch: int
    memory: MemoryEstimate
    sent_bytes: int
    pace: StepTime
    largest_batch: int

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.machine.room_bytes

    @property
    def seconds_per_sample(self) -> float:
        return self.pace.step_s / self.batch


def rows(facts: Mapping[str, ObservedFacts], there: Installed, machine: Machine) -> list[PlanRow]:
    """Return a row for each plan. ``facts`` are the observations in each precision."""
    first = facts["32"]
    found = plans(
        there, machine.ranks, machine.nodes, first.blocks, list(facts), not first.hindrances
    )
    return [_row(facts, plan, machine) for plan in found]


def _row(facts: Mapping[str, ObservedFacts], plan: StrategyPlan, machine: Machine) -> PlanRow:
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
    return PlanRow(plan, machine, batch, held, sent, speed, max(0, largest))


def _flops_of_a_batch(facts: ObservedFacts, batch: int) -> tuple[float, float]:
    """Return the FLOPs of a step's passes with whole batches, and of its blocks' forwards."""
    whole = [one for one in facts.passes if (one.samples or 1) == batch]
    steps = facts.steps * len(whole) / len(facts.passes)
    flops, again = sum(one.flops for one in whole), sum(one.block_flops for one in whole)
    return flops / steps, again / steps
