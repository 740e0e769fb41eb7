"""A loop that uses Accelerate in a session: Accelerate's numbers, and the session's plugins."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result, run

LOOP = Path(__file__).parent / "scripts" / "loop.py"
LAUNCH = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"]
LAUNCH += [
    "--num_machines=1",
    "--mixed_precision=no",
    "--dynamo_backend=no",
    "--main_process_port=0",
]


def found(result: Result) -> dict[str, Any]:
    line = next(one for one in result.ok().stdout.splitlines() if one.startswith("found "))
    return dict(json.loads(line.removeprefix("found ")))


def forked(tmp_path: Path, options: dict[str, Any] | str, *words: object) -> Result:
    """The loop in one process, or on ranks that the session forks."""
    given = options if isinstance(options, str) else json.dumps(options)
    return fork_script(LOOP, given, *words, cwd=tmp_path, timeout_s=120)


def launched(tmp_path: Path, options: dict[str, Any] | str, *words: object) -> Result:
    """The loop on two ranks that `accelerate launch` starts."""
    given = options if isinstance(options, str) else json.dumps(options)
    command = [sys.executable, *LAUNCH, str(LOOP), given, *map(str, words)]
    return run(command, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}, timeout_s=240)


def close(one: list[float], other: list[float]) -> bool:
    return all(abs(a - b) < 1e-9 for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("windows", [1, 2])
def test_in_ranks_of_the_session_an_accelerator_is_one_process(
    windows: int, tmp_path: Path
) -> None:
    """23 samples in batches of 6, so the last one is ragged, with and without accumulation."""
    alone = found(forked(tmp_path, "plain", windows, 6, 0))
    options = {"strategy": "ddp", "devices": 2, "launch": "fork", "logger": "local"}
    together = found(forked(tmp_path, options, windows, 3, 0))
    assert (alone["processes"], together["processes"]) == (1, 1)
    assert (alone["evaluated"], together["evaluated"]) == (23, 23)
    assert close([alone["error"], *alone["weights"]], [together["error"], *together["weights"]])
    assert "num_processes is 1: it leaves the ranks to the session" in together["explained"]
    assert together["steps"] == 12 // windows


def test_in_ranks_of_the_session_a_run_resumes(tmp_path: Path) -> None:
    options = {"strategy": "ddp", "devices": 2, "launch": "fork", "checkpoint": "saved"}
    whole = found(forked(tmp_path / "whole", options, 2, 3, 0))
    assert forked(tmp_path, options, 2, 3, 3).status == 138
    assert found(forked(tmp_path, options, 2, 3, 0))["weights"] == whole["weights"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("windows", [1, 2])
def test_a_session_joins_the_ranks_of_accelerate_launch(windows: int, tmp_path: Path) -> None:
    alone = found(launched(tmp_path, "plain", windows, 3, 0))
    beside = found(launched(tmp_path, {"logger": "local"}, windows, 3, 0))
    assert close([alone["error"], *alone["weights"]], [beside["error"], *beside["weights"]])
    assert (beside["processes"], beside["evaluated"], beside["steps"]) == (2, 23, 12 // windows)
    explained = " ".join(beside["explained"].split())
    assert "models and loaders that are prepared stay its own" in explained
    files = tmp_path.glob("torchbus-logs/*/*metrics*")
    assert any("loss" in file.read_text() for file in files)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", [(), ("seedable", "epochs")], ids=str)
def test_under_accelerate_launch_a_run_resumes(words: tuple[str, ...], tmp_path: Path) -> None:
    """The order of the second epoch is equal too, for both of Accelerate's samplers."""
    whole = found(launched(tmp_path, "plain", 1, 3, 0, *words))
    options = {"checkpoint": str(tmp_path / "saved"), "logger": "local"}
    launched(tmp_path, options, 1, 3, 5, *words)
    resumed = found(launched(tmp_path, options, 1, 3, 0, *words))
    assert resumed["steps"] == 12
    assert close(resumed["weights"], whole["weights"])  # DDP fills its first buckets again


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_order_that_a_resumed_run_can_not_have_is_refused(tmp_path: Path) -> None:
    options = {"checkpoint": str(tmp_path / "saved")}
    launched(tmp_path, options, 1, 3, 5, "seedable")
    resumed = launched(tmp_path, options, 1, 3, 0, "seedable")
    assert resumed.status != 0
    assert "Call loader.set_epoch(epoch) before each pass" in resumed.stderr


FABRIC = """
import json, sys, torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from contextlib import nullcontext

torch.set_default_dtype(torch.float64)
devices = int(sys.argv[1])
block = session(strategy="ddp", devices=devices, launch="fork") if devices else nullcontext()
with block:
    fabric = Fabric(accelerator="cpu", devices=1)
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(23, 3)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 6 // max(devices, 1), shuffle=True)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    for _ in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=0.5)
            optimizer.step()
    print("found", json.dumps({"weights": model.weight.flatten().tolist(), "size": fabric.world_size}))
"""


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_loop_of_fabric_in_ranks_of_the_session(ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("lightning.fabric")
    alone = found(fork_script(FABRIC, 0, cwd=tmp_path, timeout_s=120))
    together = found(fork_script(FABRIC, ranks, cwd=tmp_path, timeout_s=120))
    assert together["size"] == 1
    assert close(alone["weights"], together["weights"])
