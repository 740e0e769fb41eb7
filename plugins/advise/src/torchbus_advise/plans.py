"""The candidate plans: installed strategies with their options."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from torchbus_advise.facts import ObservedFacts


def sent_bytes(facts: ObservedFacts, plan: StrategyPlan, ranks: int, ranks_per_node: int) -> int:
    """Return the bytes that a rank sends per batch; a window's exchange is spread over its batches.

    An all-reduce sends 2 (N-1)/N of its bytes. A reduce-scatter, an all-gather, and broadcasts by
    all owners together send (N-1)/N."""
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


ACCUMULATED = 4


@dataclass(frozen=True)
class StrategyTraits:
    """What a strategy divides by the number of ranks, and what it gathers.

    ``parameters``, ``gradients`` and ``states`` are True for what is divided. ``gathers`` is how
    often a step gathers the parameters. ``is_whole`` is True if they stay whole from forward to the
    end of backward, ``casts`` if they can be gathered in another dtype, and ``flat`` if every
    tensor is divided evenly, not by rows.
    """

    label: str
    arguments: str
    package_word: str
    parameters: bool = False
    gradients: bool = False
    states: bool = False
    gathers: int = 0
    is_whole: bool = False
    casts: bool = False
    hybrid: bool = False
    flat: bool = False


def _deepspeed(stage: int, **divided: Any) -> StrategyTraits:
    """Return the traits of a ZeRO stage, which a package may provide."""
    name = f"deepspeed_stage_{stage}"
    return StrategyTraits(name, f'strategy="{name}"', name, flat=True, **divided)


def _divided(
    name: str, option: str = "", called: str = "", gathers: int = 0, **others: bool
) -> StrategyTraits:
    """Return the traits of a strategy that divides everything. ``called`` labels the option."""
    arguments = f'strategy="{name}"' + (f", {option}" if option else "")
    label = f"{name}, {called}" if called else name
    everything = {"parameters": True, "gradients": True, "states": True}
    return StrategyTraits(label, arguments, name, gathers=gathers, **everything, **others)


STRATEGIES = (
    StrategyTraits("ddp", 'strategy="ddp"', "ddp"),
    StrategyTraits("ddp_sharded", 'strategy="ddp_sharded"', "ddp_sharded", states=True),
    _divided("ddp_sharded", "shard_gradients=True", "gradients", gathers=1, is_whole=True),
    _divided("fsdp", gathers=2, casts=True),
    _divided("fsdp", "reshard_after_forward=False", "no reshard", 1, is_whole=True, casts=True),
    _divided("fsdp", "hybrid=True", "hybrid", gathers=2, casts=True, hybrid=True),
    _deepspeed(1, states=True),
    _deepspeed(2, states=True, gradients=True),
    _deepspeed(3, states=True, gradients=True, parameters=True, gathers=2),
)
"""Strategies, those that change a loop least first: of equally fast ones, the first is advised."""
ALONE = StrategyTraits("one process", "strategy=None", "")
PRECISIONS = {"32": "", "bf16": 'precision="bf16-mixed"', "gathered": 'mixed_precision="bf16"'}
"""The option for each precision, by name. With "gathered", units are gathered and computed in
bfloat16."""


@dataclass(frozen=True)
class StrategyPlan:
    """A strategy with options. ``precision`` is one of PRECISIONS."""

    strategy: StrategyTraits
    precision: str = "32"
    checkpointing: bool = False
    accumulated: int = 1

    @property
    def label(self) -> str:
        return " + ".join([self.strategy.label, *self.options])

    @property
    def options(self) -> list[str]:
        """The options of the session, without the strategy's own."""
        return [
            *([PRECISIONS[self.precision]] if PRECISIONS[self.precision] else []),
            *(['activation_checkpointing="auto"'] if self.checkpointing else []),
            *([f"accumulate_grad_batches={self.accumulated}"] if self.accumulated > 1 else []),
        ]

    @property
    def gathered_part(self) -> float:
        """The fraction of a parameter's bytes that is sent."""
        return 0.5 if self.precision == "gathered" else 1.0

    @property
    def arguments(self) -> str:
        """The arguments of ``session(...)``."""
        return ", ".join([self.strategy.arguments, *self.options])


@dataclass(frozen=True)
class Installed:
    """The names of the installed strategies and options."""

    strategies: Collection[str]
    options: Collection[str]


def installed() -> Installed:
    return Installed(
        frozenset(entry_points(group="torchbus.strategy").names),
        frozenset(entry_points(group="torchbus.option").names),
    )


def plans(
    there: Installed, ranks: int, nodes: int, blocks: int, precisions: Sequence[str], sharding: bool
) -> list[StrategyPlan]:
    """Return the plans for ``ranks`` ranks.

    ``blocks`` is the number of repeated blocks, which can be checkpointed. ``sharding`` is False if
    the loop does something that the sharded strategies refuse.
    """
    chosen = [
        one
        for one in STRATEGIES
        if one.package_word in there.strategies
        and (sharding or not one.states)
        and (nodes > 1 or not one.hybrid)
    ]
    can_checkpoint = blocks > 0 and "activation_checkpointing" in there.options
    variants = [
        (precision, checkpointing)
        for checkpointing in ((False, True) if can_checkpoint else (False,))
        for precision in precisions
    ]
    found = [
        StrategyPlan(one, *variant)
        for variant in variants
        for one in (chosen if ranks > 1 else [ALONE])
        if variant[0] != "gathered" or one.casts
    ]
    can_accumulate = ranks > 1 and "accumulate_grad_batches" in there.options
    return found + [
        StrategyPlan(one, precisions[0], False, ACCUMULATED) for one in chosen if can_accumulate
    ]
