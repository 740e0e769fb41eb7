"""``torchbus advise`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result

COMMAND = """
import sys
import torch
from torchbus_cli.main import main
torch.get_num_threads()
torch.set_num_threads(8)  # a pool that each trial, a fork, has to replace
sys.exit(main(["advise", *sys.argv[1:]]))
"""
LOOP = """
import warnings
import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.25)
while True:
    for x in DataLoader(torch.randn(64, 3), batch_size=8, num_workers=1):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        warnings.warn("of the script's own")
"""


def advise(folder: Path, script: str, *words: str) -> Result:
    (folder / "train.py").write_text(script)
    return fork_script(COMMAND, *words, "train.py", cwd=folder, timeout_s=110)


def test_without_a_number_it_prints_four_columns(tmp_path: Path) -> None:
    result = advise(tmp_path, LOOP, "--tensors", "fake")
    assert result.ok() and "1 GPU   2 GPUs   4 GPUs   8 GPUs" in result.stdout
    assert [f"{ranks} x A100 80 GB, 80 GiB:" in result.stdout for ranks in (1, 2, 4, 8)] == [
        True
    ] * 4
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "of the script's own" not in result.stdout + result.stderr


def test_real_values_and_what_they_show(tmp_path: Path) -> None:
    result = advise(tmp_path, LOOP, "--tensors", "real", "--json", "--devices", "2", "--gpu", "l4")
    told = json.loads(result.ok() and result.stdout)
    assert told["gpu"]["memory_gib"] == 24 and told["real"]["step_s"] > 0
    assert told["real"]["loader"]["load_s"] > 0 and told["real"]["loader"]["workers"] == 1
    assert told["real"]["warnings"][0].endswith("of the script's own")
    assert {row["ranks"] for row in told["rows"]} in (
        {2},
        set(),
    )  # nothing, if no strategy is installed


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("print('evaluated')", "train.py ended and never called backward"),
        (
            "raise OSError('no data here')",
            "train.py failed before its first step: OSError: no data",
        ),
        ("input('which data? ')", "train.py failed before its first step: EOFError"),
        (
            "import os\nos.kill(os.getpid(), 9)",
            "killed it (signal 9), as it does when memory runs out",
        ),
        (
            "import torch\ntorch.ones(1, requires_grad=True).sum().backward()",
            "without a step of an opt",
        ),
        ("import os\nos._exit(4)", "the process ended with status 4 before its first step"),
    ],
)
def test_scripts_that_make_no_step(script: str, words: str, tmp_path: Path) -> None:
    result = advise(tmp_path, script, "--tensors", "fake")
    assert result.ok(3) and words in result.stderr and not result.stdout
    assert ("Traceback" in result.stderr) == ("OSError" in words or "EOFError" in words)


def test_a_script_that_takes_too_long(tmp_path: Path) -> None:
    result = advise(tmp_path, "import time\ntime.sleep(99)", "--tensors", "fake", "--timeout", "1")
    assert result.ok(3) and "did not finish its first steps within 1 s" in result.stderr


def test_fake_tensors_that_do_not_carry_a_script_are_replaced_by_real_ones(tmp_path: Path) -> None:
    awkward = LOOP.replace(
        "while True:", "torch.randn(4).unique(); torch.ones(3).data_ptr()\nwhile True:"
    )
    result = advise(tmp_path, awkward)
    assert result.ok() and "note: fake tensors do not carry this script" in result.stdout


@pytest.mark.parametrize("words", [("--devices", "0"), ("--steps", "-1"), ("--num-nodes", "0")])
def test_numbers_that_can_not_be(words: tuple[str, str], tmp_path: Path) -> None:
    result = advise(tmp_path, LOOP, *words, "--tensors", "fake")
    assert result.ok(2) and "it must be 1 or more" in result.stderr
