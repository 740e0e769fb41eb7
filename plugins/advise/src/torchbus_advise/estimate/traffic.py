"""Bytes that each rank sends in a step, by the collectives that torch's ring algorithms make."""

from __future__ import annotations

from torchbus_advise.estimate.plans import Plan
from torchbus_advise.observing.facts import Facts


def sent_bytes(facts: Facts, plan: Plan, ranks: int, ranks_per_node: int) -> int:
    """For one batch of each rank: a window's one exchange counts as a part in each of its batches.

    An all-reduce sends 2 (N-1)/N of its bytes, a reduce-scatter, an all-gather and a broadcast by
    all owners together (N-1)/N."""
    strategy = plan.strategy
    divided_by = min(ranks, ranks_per_node) if strategy.hybrid else ranks
    part = (divided_by - 1) / divided_by
    gradients = sum(one.gradient_bytes for one in facts.parameters)
    whole = sum(one.bytes for one in facts.parameters if one.managed)
    if not strategy.parameters:
        owned = part * sum(one.bytes for one in facts.parameters if one.gradient_bytes)
        if strategy.flat:  # a reduce-scatter
            return round((part * gradients + owned) / plan.accumulated)
        return round((2 * part * gradients + owned * strategy.states) / plan.accumulated)
    nodes = ranks // divided_by
    across = 2 * (nodes - 1) / nodes * gradients / divided_by
    sent = strategy.gathers * part * whole + (part * gradients + across) / plan.accumulated
    return round(sent * plan.gathered_part)
