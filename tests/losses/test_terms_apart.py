"""Terms of a loss that weigh apart give what one big batch gives: batches of zipped loaders of
unlike lengths, terms over unlike counts.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

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
