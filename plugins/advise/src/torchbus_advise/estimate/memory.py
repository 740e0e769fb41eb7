"""Bytes on the rank that holds most, by what they are for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from torchbus_advise.estimate.plans import Plan, Strategy
from torchbus_advise.observing.facts import (
    NO_OPTIMIZER,
    ROOT_UNIT,
    Facts,
    ParameterFacts,
    PassFacts,
)

UNITS_AT_ONCE = 2
"""The one that computes, and the next, which is gathered meanwhile."""


@dataclass(frozen=True)
class Memory:
    """``parameters``, ``gradients`` and ``states`` are what is kept between steps; ``exchange``
    what comes with backward: gradient buckets, gathered units and their gradients. Buffers count as
    parameters. What kernels, allocator and libraries take is unknown."""

    parameters: int
    gradients: int
    states: int
    activations: int
    exchange: int

    @property
    def total(self) -> int:
        states_bytes = self.parameters + self.gradients + self.states
        return states_bytes + self.activations + self.exchange


def memory(facts: Facts, plan: Plan, ranks: int, activations: int) -> Memory:
    """For ``ranks`` among which the strategy divides (under hybrid those of a node)."""
    everything, strategy = facts.parameters, plan.strategy
    return Memory(
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


def activations(passes: Sequence[PassFacts], plan: Plan) -> tuple[float, float]:
    """Bytes of a batch of no samples, and of each sample. Without two batch sizes everything is
    taken to grow with the batch. Without known batch sizes the script's batch counts as one
    sample."""
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


def _part(one: ParameterFacts, count: int, ranks: int, strategy: Strategy, divided: bool) -> int:
    """``fully_shard`` cuts dim 0: the first rank gets the larger part."""
    if divided and strategy.flat:
        return ceil(count / ranks)
    if not (divided and one.managed and one.shape) or not one.bytes:
        return count
    rows = one.shape[0]
    return round(count * ceil(rows / ranks) / rows) if rows else 0


def _states(parameters: Sequence[ParameterFacts], strategy: Strategy, ranks: int) -> int:
    if strategy.states and not strategy.parameters and not strategy.flat:
        return _of_owners(parameters, ranks)
    return sum(
        _part(one, one.state_bytes, ranks, strategy, strategy.states) + one.scalar_bytes
        for one in parameters
    )


def _of_owners(parameters: Sequence[ParameterFacts], ranks: int) -> int:
    """ZeRO's first stage: the largest parameters first, each to the rank that has least."""
    bytes_of = Counter(dict.fromkeys(range(ranks), 0))
    for optimizer in {one.optimizer for one in parameters} - {NO_OPTIMIZER}:
        elements = [0] * ranks
        held = [one for one in parameters if one.optimizer == optimizer]
        for one in sorted(held, key=lambda one: -prod(one.shape)):
            rank = elements.index(min(elements))
            elements[rank] += prod(one.shape)
            bytes_of[rank] += one.state_bytes + one.scalar_bytes
    return max(bytes_of.values())


def _exchange(parameters: Sequence[ParameterFacts], plan: Plan) -> int:
    """ddp's buckets are a copy of all gradients. A sharded unit is whole while it computes, and so
    are its gradients."""
    strategy = plan.strategy
    if not strategy.parameters:
        return sum(one.gradient_bytes for one in parameters)
    whole: Counter[int] = Counter()
    gradients: Counter[int] = Counter()
    for one in parameters:
        if one.managed:
            whole[one.unit] += one.bytes
            gradients[one.unit] += one.gradient_bytes
    outermost = whole.pop(ROOT_UNIT, 0)  # stays gathered from forward to backward
    blocks = sorted(whole.values(), reverse=True)
    gathered = outermost + sum(blocks if strategy.is_whole else blocks[:UNITS_AT_ONCE])
    return round((gathered + max(gradients.values(), default=0)) * plan.gathered_part)
