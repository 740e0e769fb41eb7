"""Terms of a loss that weigh apart give what one big batch gives: batches of zipped loaders of
unlike lengths, terms over unlike counts.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ranks import facts, run

from torchbus_testing.forking import fork_script

SLOW = pytest.mark.slow
SCRIPT = Path(__file__).parent / "scripts" / "terms_apart.py"
OF_NOTHING = "learned weights of nothing"
INEXACT = ["adversarial", "begin late", OF_NOTHING]
OURS = re.compile("the terms of the loss|one step used batches|a factor of the loss").match
MIXED = [*INEXACT, "mean_of_both"]
SIZES = {2: [[32, 29], [27, 25], [33, 31]], 3: [[29, 32], [27, 25], [45, 47]]}


def found(**asked: Any) -> dict[str, list[Any]]:
    results: dict[str, list[Any]] = fork_script(
        SCRIPT, json.dumps({"sizes": SIZES[asked["devices"]][:2], **asked}), timeout_s=280
    ).json()
    return results


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(
            {
                "strategy": "ddp",
                "devices": 2,
                "cases": [
                    "supervised",
                    "confident",
                    "copies",
                    "two_heads",
                    "mask_and_samples",
                    "weighted_mean",
                    "stacked",
                    "learned_weights",
                    "stacked_weights",
                    "one_weight",
                    "several_roots",
                ],
            },
            id="ddp",
        ),
        pytest.param(
            {
                "strategy": "ddp",
                "devices": 3,
                "cases": ["as_one_batch", "both_ignore", "tokens_and_samples"],
            },
            id="ddp, 3 ranks",
            marks=SLOW,
        ),
        pytest.param(
            {
                "strategy": "fsdp",
                "devices": 2,
                "cases": ["supervised", "both_ignore", "tokens_and_samples"],
            },
            id="fsdp",
            marks=SLOW,
        ),
        pytest.param(
            {"strategy": "ddp", "devices": 2, "but": INEXACT, "sizes": SIZES[2]},
            id="ddp, all",
            marks=SLOW,
        ),
        pytest.param(
            {"strategy": "ddp", "devices": 3, "but": MIXED, "sizes": SIZES[3]},
            id="ddp, 3 ranks, all",
            marks=SLOW,
        ),
        pytest.param(
            {"strategy": "fsdp", "devices": 3, "cases": ["consistency", "confident", "two_heads"]},
            id="fsdp, 3 ranks",
            marks=SLOW,
        ),
        pytest.param(
            {"strategy": "ddp_sharded", "devices": 2, "cases": ["supervised", "two_heads"]},
            id="ddp_sharded",
            marks=SLOW,
        ),
    ],
)
def test_ranks_equal_the_big_batch(asked: dict[str, Any]) -> None:
    results = found(**asked)
    apart = {
        name: result[:3]
        for name, result in results.items()
        if not 0 <= max(result[:2]) < 1e-12 or any(map(OURS, result[2]))
    }
    assert not apart and len(results) > 1


def test_a_rank_without_targets_has_no_part_in_learned_weights() -> None:
    """Its printed loss lacks what is of parameters only (docs/limits.md)."""
    assert found(strategy="ddp", devices=2, cases=[OF_NOTHING])[OF_NOTHING][0] < 1e-12


def test_what_no_graph_tells_is_said() -> None:
    """A difference of means over two batches, and a rank that has repeated one of two batches that
    were put together.
    """
    results = found(
        strategy="ddp", devices=3, cases=["adversarial", "mean_of_both"], sizes=[[32, 29]]
    )
    for said in [result[2] for result in results.values()]:
        assert any(
            text.startswith("one step used batches of two loaders, whose shares have different")
            for text in said
        )


def test_terms_that_begin_to_count_unlike_things_are_said() -> None:
    said = found(strategy="ddp", devices=2, cases=["begin late"])["begin late"][2]
    assert any(
        text.startswith("the terms of the loss have become means over different counts")
        for text in said
    )


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_explain_says_what_counts(strategy: str) -> None:
    explained = found(strategy=strategy, devices=2, cases=["tokens_and_samples"])[
        "tokens_and_samples"
    ][3]
    assert "each term is weighted by its count" in " ".join(explained.split())


def test_weights_of_samples_know_their_loader() -> None:
    results = found(
        strategy="ddp", devices=2, cases=["supervised", "two_heads"], loss_weight="samples"
    )
    assert (
        max(max(result[:2]) for name, result in results.items() if "supervised" in name)
        < 1e-12
        < 1e-4
        < results["two_heads"][0]
    )


MASKED = """
        x, some = torch.randn(8, 4), torch.tensor([1.0, 0, 0, 0, 1, 0, 0, 0])
        weights = torch.rand(8) + 0.5
        first, second = nn.Linear(4, 4), nn.Linear(4, 1)
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        read = []
        for a, mask, w in DataLoader(TensorDataset(x, some, weights), batch_size=4):
            loss = {loss}
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            read.append(loss.item())
        found["read"], found["weights"] = read, first.weight.tolist() + second.weight.tolist()
"""
AND_A_MEAN = "(w * second(a)[:, 0].square()).sum() / w.sum() + "


def is_exact(loss: str) -> bool:
    one, two = (facts(MASKED.format(loss=loss), "batch='global'", ranks=ranks) for ranks in (1, 2))
    return all(two[key] == [pytest.approx(value) for value in one[key]] for key in one)


def test_a_count_that_equals_the_samples_of_all_ranks_is_a_count() -> None:
    """Each sample has two of four values, so each rank counts as many as both have samples."""
    half = "torch.tensor([1.0, 1.0, 0.0, 0.0]).expand_as(a)"
    assert is_exact(f"{AND_A_MEAN}((first(a) - a).square() * {half}).sum() / {half}.sum()")


def test_a_term_that_only_some_ranks_compute_is_said_with_a_remedy_that_works() -> None:
    branch = f"{AND_A_MEAN}(first(a)[mask > 0].square().mean() if mask.any() else 0.0)"
    stderr = run(MASKED.format(loss=branch), "batch='global'").ok().stderr
    assert stderr.count("the ranks' losses have different numbers of terms in this backward") == 1
    assert is_exact(f"{AND_A_MEAN}(first(a).square().mean(1) * mask).sum() / (mask.sum() + 1e-8)")
