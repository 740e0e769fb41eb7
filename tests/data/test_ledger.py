"""The sample ledger: over real loaders on real ranks, each index once in each pass."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranks import facts

LOOP = """
    from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
    samplers = {
        "sequential": lambda n: None,
        "random": lambda n: RandomSampler(range(n)),
        "subset": lambda n: SubsetRandomSampler(range(0, n, 2)),
        "weighted": lambda n: WeightedRandomSampler([1.0] * n, n + 3),
        "generator": lambda n: RandomSampler(range(n), generator=torch.Generator().manual_seed(n)),
        "replacement": lambda n: RandomSampler(range(n), replacement=True, num_samples=7 * n),
    }
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    loaders = []
    for case in CASES:
        n, sampler = case["samples"], samplers[case["sampler"]](case["samples"])
        how = dict(batch_size=case["batch_size"], drop_last=case["drop_last"], sampler=sampler)
        if case["batch_sampler"]:
            how = dict(batch_sampler=BatchSampler(sampler or range(n), case["batch_size"], case["drop_last"]))
        loader = DataLoader(TensorDataset(torch.arange(float(n))), num_workers=case["workers"], **how)
        loaders.append(loader)
        for epoch in range(case["epochs"]):
            for (x,) in loader:
                optimizer.zero_grad()
                (weight * x).mean().backward()
                optimizer.step()
"""
SMALL = """
from torchbus_sampler.orders import draws, shared as array, shared as memory
array.BLOCK, draws.WHOLE, draws.PIECES = 8, 70, (4, 64)
memory.SharedArrays.__init__.__defaults__ = None, 4  # shared by the ranks from 4 samples on
"""
case = st.fixed_dictionaries(
    {
        "samples": st.integers(1, 30),
        "batch_size": st.integers(1, 7),
        "drop_last": st.booleans(),
        "batch_sampler": st.booleans(),
        "sampler": st.sampled_from(
            ["sequential", "random", "subset", "weighted", "generator", "replacement"]
        ),
        "workers": st.sampled_from([0] * 9 + [2]),
        "epochs": st.integers(1, 2),
    }
)


def taken(folder: Path, ranks: int) -> list[list[dict[str, Any]]]:
    return [
        [json.loads(line) for line in (folder / f"rank{rank}.jsonl").read_text().splitlines()]
        for rank in range(ranks)
    ]


def population(case: dict[str, Any]) -> int:
    """How many indices the sampler draws in a pass."""
    samples = case["samples"]
    drawn = {"subset": -(-samples // 2), "weighted": samples + 3, "replacement": 7 * samples}
    return drawn.get(case["sampler"], samples)


def check(
    case: dict[str, Any], lines: list[dict[str, Any]], ranks: int, batches_per_step: int
) -> None:
    drawn, step_size = population(case), case["batch_size"] * batches_per_step
    expected = drawn - drawn % step_size if case["drop_last"] else drawn
    for number in range(case["epochs"]):
        mine = [line for line in lines if line["pass"] == number]
        indices = [index for line in mine for index in line["indices"]]
        assert len(indices) == expected, case
        if case["sampler"] not in ("weighted", "replacement"):
            assert max(Counter(indices).values(), default=1) == 1, case
        for step in {line["step"] for line in mine}:
            weights = [line["weight"] for line in mine if line["step"] == step]
            assert len(weights) == ranks and sum(weights) == pytest.approx(ranks), case


@pytest.mark.parametrize(
    ("ranks", "batch", "arrays"),
    [
        (2, "per_device", "large"),
        (2, "global", "small"),
        pytest.param(2, "per_device", "small", marks=pytest.mark.slow),
        pytest.param(3, "per_device", "small", marks=pytest.mark.slow),
        pytest.param(3, "global", "large", marks=pytest.mark.slow),
    ],
)
@settings(
    max_examples=1,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(cases=st.lists(case, min_size=12, max_size=12))
def test_each_index_once(
    tmp_path_factory: pytest.TempPathFactory,
    ranks: int,
    batch: str,
    arrays: str,
    cases: list[dict[str, Any]],
) -> None:
    """``small``: arrays are shared, and have several pieces and blocks, whose edges steps cross."""
    folder = tmp_path_factory.mktemp("ledger")
    facts(
        LOOP,
        options=f"batch={batch!r}, sample_ledger={str(folder)!r}",
        before=(SMALL if arrays == "small" else "") + f"CASES = {cases!r}",
        ranks=ranks,
    )
    found = taken(folder, ranks)
    for number, case in enumerate(cases):
        lines = [line for rank in found for line in rank if line["loader"] == number]
        check(case, lines, ranks, ranks if batch == "per_device" else 1)
