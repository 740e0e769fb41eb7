"""From facts to rows and a choice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from torchbus_advise.facts import (
    LoaderFacts,
    ObservedFacts,
    OptimizerFacts,
    ParameterFacts,
    PassFacts,
)
from torchbus_advise.inventory import described
from torchbus_advise.plans import Installed, StrategyPlan, StrategyTraits
from torchbus_advise.rows import GPUS, Machine, PlanRow, activations, choose, rows
from torchbus_advise.text import largest_batch

GIB = 2**30
EVERYTHING = Installed(
    ("ddp", "ddp_sharded", "fsdp"),
    ("precision", "activation_checkpointing", "accumulate_grad_batches", "scale_lr", "batch"),
)


def parameter(gib: float, unit: int = -1) -> ParameterFacts:
    count = int(gib * GIB)
    return ParameterFacts((count // 4096, 1024), count, count, 2 * count, 4, 0, True, unit)


def facts(blocks: int = 8, block_gib: float = 1.0, activation_gib: float = 8.0) -> ObservedFacts:
    """A model of equal blocks, with Adam, and a batch of 8."""
    held = int(activation_gib * GIB)
    return ObservedFacts(
        parameters=[parameter(block_gib, unit) for unit in range(blocks)],
        passes=[
            PassFacts(8, held, held // 8, 10**13, 3 * 10**12),
            PassFacts(4, held // 2, held // 16, 5 * 10**12, 0),
        ],
        optimizers=[OptimizerFacts("Adam", (0.001,))],
        loader=None,
        buffer_bytes=0,
        blocks=blocks,
        local_precision=False,
        steps=2,
    )


def table(
    seen: ObservedFacts, ranks: int, there: Installed = EVERYTHING, nodes: int = 1
) -> list[PlanRow]:
    return rows({"32": seen}, there, Machine(GPUS["a100"], ranks, nodes))


def find(found: list[PlanRow], label: str) -> PlanRow:
    return next(row for row in found if row.plan.label == label)


def test_what_is_divided_by_four() -> None:
    found = table(facts(), 4)
    ddp, zero, fsdp = (find(found, name).memory for name in ("ddp", "ddp_sharded", "fsdp"))
    assert (ddp.parameters, ddp.gradients) == (8 * GIB, 8 * GIB)
    assert ddp.exchange == 8 * GIB  # the buckets are a copy of the gradients
    assert zero.states == pytest.approx(4 * GIB, rel=1e-6) and zero.gradients == 8 * GIB
    assert (fsdp.parameters, fsdp.gradients) == (2 * GIB, 2 * GIB)
    assert fsdp.exchange == 3 * GIB  # two units, and the gradients of one
    assert find(found, "fsdp, no reshard").memory.exchange == 9 * GIB


def test_the_stages_of_zero_where_a_package_brings_them() -> None:
    stages = [f"deepspeed_stage_{stage}" for stage in (1, 2, 3)]
    assert not [row for row in table(facts(), 4) if "deepspeed" in row.plan.label]
    found = table(facts(), 4, Installed(("ddp", *stages), ()))
    parts = [find(found, name) for name in stages]
    held = [(one.memory.parameters, one.memory.gradients) for one in parts]
    assert held == [(8 * GIB, 8 * GIB), (8 * GIB, 2 * GIB), (2 * GIB, 2 * GIB)]
    assert [one.memory.states for one in parts] == pytest.approx([4 * GIB] * 3, rel=1e-6)
    assert [one.sent_bytes for one in parts] == [12 * GIB, 12 * GIB, 18 * GIB]
    assert parts[0].plan.arguments == 'strategy="deepspeed_stage_1"'


def test_what_is_in_no_block_stays_gathered() -> None:
    seen = facts()
    seen = replace(seen, parameters=[*seen.parameters, parameter(0.5)])
    assert find(table(seen, 4), "fsdp").memory.exchange == 3.5 * GIB


def test_the_rank_that_owns_most_counts() -> None:
    uneven = replace(facts(), parameters=[parameter(3), parameter(1), parameter(1)])
    assert find(table(uneven, 2), "ddp_sharded").memory.states == 6 * GIB + 4


def test_bytes_that_are_sent() -> None:
    found = table(facts(), 4)
    assert find(found, "ddp").sent_bytes == 12 * GIB  # 2 x 3/4 of 8
    assert find(found, "fsdp").sent_bytes == 18 * GIB  # 3 x 3/4 of 8
    assert find(found, "fsdp, no reshard").sent_bytes == 12 * GIB
    assert find(found, "ddp + accumulate_grad_batches=4").sent_bytes == 3 * GIB


def test_hybrid_divides_within_a_machine() -> None:
    found = table(facts(), 8, nodes=2)
    hybrid = find(found, "fsdp, hybrid")
    assert hybrid.memory.parameters == 2 * GIB and find(found, "fsdp").memory.parameters == GIB
    assert hybrid.sent_bytes == 18 * GIB + 2 * GIB  # an all-reduce of a fourth between two machines
    assert "fsdp, hybrid" not in [row.plan.label for row in table(facts(), 8)]


def test_activations_grow_with_the_batch_but_for_what_is_fixed() -> None:
    passes = [PassFacts(8, 900, 90, 0, 0), PassFacts(4, 500, 50, 0, 0)]
    ddp = StrategyTraits("ddp", "", "ddp")
    assert activations(passes, StrategyPlan(ddp)) == (100.0, 100.0)
    assert activations(passes, StrategyPlan(ddp, checkpointing=True)) == (10.0, 10.0)
    assert activations(passes[:1], StrategyPlan(ddp)) == (0.0, 112.5)


def test_the_largest_batch_fills_what_can_be_planned_for() -> None:
    row = find(table(facts(), 1), "one process")
    assert row.memory.total == pytest.approx(40 * GIB, rel=1e-6)
    assert row.largest_batch == 39  # 72 GiB less 32 leave 39.99 of 1 GiB each


def test_the_plainest_that_fits_is_advised_if_others_are_no_faster() -> None:
    small = facts(block_gib=0.001, activation_gib=0.01)
    choice = choose(lambda ranks: table(small, ranks), 4)
    assert choice.row is not None and choice.row.plan.arguments == 'strategy="ddp"'


def test_what_does_not_fit_is_not_advised() -> None:
    large = facts(blocks=16, block_gib=2.0)
    found = table(large, 8)
    assert not find(found, "ddp").fits and not find(found, "ddp_sharded").fits
    choice = choose(lambda ranks: table(large, ranks), 8)
    assert choice.row is not None and choice.row.fits
    assert choice.row.plan.arguments == 'strategy="ddp_sharded", shard_gradients=True'


def test_too_few_gpus_are_told_how_many_it_takes() -> None:
    huge = facts(blocks=64, block_gib=4.0)
    choice = choose(lambda ranks: table(huge, ranks), 2)
    assert choice.needs_ranks == 32 and choice.row is not None and choice.row.fits


def test_a_batch_that_is_too_large_is_told_which_one_fits() -> None:
    wide = replace(facts(blocks=0), passes=[PassFacts(8, 200 * GIB, 200 * GIB, 10**13, 0)])
    choice = choose(lambda ranks: table(wide, ranks), 1)
    assert choice.needs_batch == 2


def test_only_what_is_installed_is_advised() -> None:
    labels = [row.plan.label for row in table(facts(), 4, Installed(("ddp",), ()))]
    assert labels == ["ddp"]


def test_a_loop_that_sharded_strategies_refuse_is_offered_none() -> None:
    refused = replace(facts(), hindrances=["backward(create_graph=True)"])
    assert {row.plan.strategy.label for row in table(refused, 4)} == {"ddp"}


def test_the_largest_batch_ends_at_the_data() -> None:
    there = table(facts(), 1)
    row = find(there, "one process")
    known = replace(facts(), loader=LoaderFacts(8, 0, None, samples=30))
    assert largest_batch(row, there, known).startswith("batch: all 30 samples of the data set fit")
    more = replace(facts(), loader=LoaderFacts(8, 0, None, samples=3000))
    assert "the largest that fits is 39" in largest_batch(row, there, more)


@pytest.mark.parametrize("schedule", ["warm-up", "cycle", "none"])
def test_the_rate_is_that_of_the_script(schedule: str) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.25)
    if schedule == "warm-up":
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, 1000)
    elif schedule == "cycle":
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.25, total_steps=1000)
    assert described([optimizer])[0].rates == (0.25,)
