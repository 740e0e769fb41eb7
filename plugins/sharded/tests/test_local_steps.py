"""Steps of optimizers over the parts that a rank keeps: the numbers of one process, and no DTensor
in their operations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "local_steps.py"
BY_ELEMENT = (
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamax",
    "AdamW",
    "ASGD",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
    "SGD, momentum",
    "foreach",
    "fused",
    "maximize",
    "a class of one's own",
)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return dict(fork_script(SCRIPT, timeout_s=110).json())


@pytest.mark.parametrize("way", BY_ELEMENT)
def test_they_are_the_steps_of_one_process(found: dict[str, Any], way: str):
    assert found[way]["apart"] < 1e-12 and not found[way]["parts in operations"]


@pytest.mark.parametrize("way", BY_ELEMENT)
def test_hooks_and_states_have_divided_tensors(found: dict[str, Any], way: str):
    assert found[way]["hooks"] == ["DTensor"] and found[way]["state"] in (["DTensor"], [])


def test_torch_is_put_back(found: dict[str, Any]):
    assert found["put back"]


def test_optimizers_that_take_norms_of_whole_parameters():
    found = fork_script(SCRIPTS / "whole_norms.py", timeout_s=115).json()
    refused = {"Centralised, fsdp"} if Version(torch.__version__) >= Version("2.14") else set()
    assert all("p.grad.add_(-p.grad.mean" in found.pop(name) for name in refused)
    assert len(found) == 4 - len(refused)
    assert all(apart < 1e-12 for apart in found.values()), found
