"""Losses that are means over tokens, weights of classes or elements behind a mask: N ranks and
windows give what one big batch gives.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import facts

import torchbus_simulator as accelerator
from torchbus_testing.forking import fork_script

SLOW = pytest.mark.slow
SCRIPT = Path(__file__).parent / "scripts" / "counted_losses.py"
UNDER_FSDP = [
    "ignored",
    "class weights",
    "smoothed",
    "masked mean",
    "max(mask.sum(), 1)",
    "several terms",
    "sum over a constant",
    "over what all ranks have",
]

IN_WINDOWS = [  # one of each kind: counted by torch, by a mask, by both, by the script's constant
    "ignored",
    "masked mean",
    "several terms",
    "sum over a constant",
    "over what all ranks have",
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(
            {"strategy": "ddp", "devices": 2, "cases": IN_WINDOWS, "others": True}, id="ddp"
        ),
        pytest.param({"strategy": "ddp", "devices": 2}, id="ddp, all", marks=SLOW),
        pytest.param({"strategy": "ddp", "devices": 3}, id="ddp, 3 ranks", marks=SLOW),
        pytest.param(
            {"strategy": "ddp", "devices": 2, "batch": "global"}, id="ddp, batch=global", marks=SLOW
        ),
        pytest.param(
            {"strategy": "ddp", "devices": 3, "batch": "global"},
            id="ddp, 3 ranks, batch=global",
            marks=SLOW,
        ),
        pytest.param(
            {"strategy": "ddp", "devices": 2, "window": 3, "cases": IN_WINDOWS},
            id="ddp, windows",
            marks=SLOW,
        ),
        pytest.param(
            {"strategy": "ddp", "devices": 2, "window": 3}, id="ddp, windows, all", marks=SLOW
        ),
        # Left out: what is compared there is the mean over one window, where a ragged batch has
        # another constant (tests/losses/test_constant_divisors.py).
        pytest.param(
            {"strategy": "ddp", "devices": 3, "window": 3, "but": ["sum over a constant"]},
            id="ddp, 3 ranks, windows",
            marks=SLOW,
        ),
        pytest.param({"strategy": "fsdp", "devices": 2, "cases": UNDER_FSDP}, id="fsdp"),
        pytest.param(
            {"strategy": "fsdp", "devices": 2, "window": 3, "cases": ["ignored", "masked mean"]},
            id="fsdp, windows",
        ),
        pytest.param(
            {"strategy": "fsdp", "devices": 2, "window": 3, "cases": UNDER_FSDP, "others": True},
            id="fsdp, windows, all",
            marks=SLOW,
        ),
        pytest.param(
            {"strategy": "fsdp", "devices": 3, "cases": UNDER_FSDP}, id="fsdp, 3 ranks", marks=SLOW
        ),
        pytest.param(
            {"strategy": "ddp_sharded", "devices": 2, "window": 3},
            id="ddp_sharded, windows",
            marks=SLOW,
        ),
        pytest.param({"strategy": "dp", "devices": 2, "but": ["mask.sum()"]}, id="dp", marks=SLOW),
        pytest.param(
            {"strategy": "dp", "devices": 2, "window": 3, "cases": ["ignored", "mean"]},
            id="dp, windows",
            marks=SLOW,
        ),
    ],
)
def test_ranks_and_windows_equal_the_big_batch(asked: dict[str, Any]) -> None:
    found = fork_script(SCRIPT, json.dumps(asked), timeout_s=280).json()
    apart = {
        name: differences for name, differences in found.items() if not max(differences) < 1e-12
    }
    assert not apart and len(found) > 1


ON_DEVICES = ("ignored", "masked mean", "several terms", "sum over a constant", "mean")


@pytest.mark.skipif(accelerator.missing() is not None, reason=str(accelerator.missing()))
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("strategy", "case", "samples"),
    [
        pytest.param(
            strategy,
            case,
            samples,
            marks=[] if (strategy, case) == ("ddp", ON_DEVICES[3]) and samples < 46 else SLOW,
        )
        for strategy in ("ddp", "fsdp")
        for case in ON_DEVICES
        for samples in (41, 45, 46, 93)  # the last batch: 1 and 0, 3 and 2, 3 and 3
    ],
)
def test_devices_count_without_waiting(strategy: str, case: str, samples: int) -> None:
    """After the first backwards the host does not read what the ranks tell each other."""
    asked = {
        "strategy": strategy,
        "devices": 2,
        "accelerator": "sim",
        "cases": [case],
        "samples": samples,
        "window": 3 if samples == 93 else 1,
    }
    found = fork_script(SCRIPT, json.dumps(asked), timeout_s=280).json()
    assert max(found[case]) < 1e-12, found


def test_samples_may_be_said_to_count() -> None:
    """What the graph tells matters: without it the same loop is off."""
    asked = {
        "strategy": "ddp",
        "devices": 2,
        "cases": ["ignored", "mean"],
        "loss_weight": "samples",
    }
    found = fork_script(SCRIPT, json.dumps(asked)).json()
    assert found["ignored"][0] > 1e-3 and found["mean"][0] < 1e-12


def test_as_many_terms_as_samples() -> None:
    """At the ragged end of 13 a rank repeats two samples, and must learn nothing from them."""
    result = fork_script(SCRIPT.with_name("term_per_sample.py"))
    assert result.json() < 1e-12 and "different numbers of terms" not in result.stderr


REPEATED = """
        import torch.distributed as dist
        import warnings
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.arange({rows} * 2.0).reshape({rows}, 2)
        counts = torch.arange({rows}) % 3 + 1.0
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for a, n in DataLoader(TensorDataset(x, counts), batch_size=2):
                number = n.sum()
                dist.all_reduce(number)
                optimizer.zero_grad()
                (net(a).square().sum() / (number / s.world_size).item()).backward()
                optimizer.step()
        found["said"] = [str(one.message) for one in said if "repeated a batch" in str(one.message)]
"""


def test_a_number_of_all_ranks_that_has_counted_a_repeated_batch_is_told() -> None:
    """13 samples are 3, 3 and 1 for a global batch of 6: two ranks repeat what they had."""
    assert len(facts(REPEATED.format(rows=13), ranks=3)["said"]) == 1
    assert not facts(REPEATED.format(rows=12), ranks=3)["said"]
