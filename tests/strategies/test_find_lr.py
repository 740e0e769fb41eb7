"""The learning-rate range test under strategies, and in a run that resumes: torchbus-scale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "range_test.py"
pytestmark = [pytest.mark.timeout(300)]


def trained(folder, options, ends_at=None):
    path = folder / "result.pt"
    words = json.dumps([options, ends_at, str(path)])
    assert fork_script(SCRIPT, words, cwd=folder, timeout_s=200).ok(7 if ends_at else 0)
    return None if ends_at else torch.load(path)


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param({"strategy": "ddp", "devices": 2}, marks=pytest.mark.slow),
        pytest.param({"strategy": "ddp", "devices": 3}, marks=pytest.mark.slow),
        {"strategy": "fsdp", "devices": 2, "accelerator": "cpu"},
        pytest.param({"strategy": "ddp_sharded", "devices": 2}, marks=pytest.mark.slow),
    ],
    ids=lambda strategy: f"{strategy['strategy']}-{strategy['devices']}",
)
def test_ranks_find_and_train_as_one_process(tmp_path, strategy):
    plain = trained(tmp_path, {"strategy": None})
    found = trained(tmp_path, {**strategy, "batch": "global"})
    assert found["found"][0] == plain["found"][0]
    assert found["found"][1] == pytest.approx(plain["found"][1], rel=1e-8)
    assert found["losses"] == pytest.approx(plain["losses"], rel=1e-8)


@pytest.mark.parametrize(
    "strategy",
    [
        {"strategy": None},
        pytest.param({"strategy": "ddp", "devices": 2, "batch": "global"}, marks=pytest.mark.slow),
    ],
    ids=["one rank", "ddp"],
)
def test_a_run_that_resumes_tries_again_and_goes_on_bit_for_bit(tmp_path, strategy):
    saves = {"checkpoint": str(tmp_path / "checkpoints"), "every_n_steps": 1}
    whole = trained(tmp_path, strategy)
    trained(tmp_path, {**strategy, **saves}, ends_at=7)
    resumed = trained(tmp_path, {**strategy, **saves})
    assert resumed["losses"] == whole["losses"][-len(resumed["losses"]) :]
    assert resumed["found"] == whole["found"]
    assert all(torch.equal(resumed["state"][name], one) for name, one in whole["state"].items())
