"""What a loop prints of its loss is that of all ranks, also behind a scaler, a division, a sum."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = (Path(__file__).parent / "scripts" / "parts_of_a_loss.py").read_text("utf-8")


def printed(ranks: int, strategy: str = "ddp") -> dict[str, Any]:
    result = fork_script(SCRIPT, ranks, strategy)
    assert result.ok(), result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return printed(1)


@pytest.mark.parametrize(("ranks", "strategy"), [(2, "ddp"), (3, "ddp"), (2, "fsdp"), (3, "fsdp")])
def test_printed_as_in_one_process(ranks: int, strategy: str, alone: dict[str, Any]) -> None:
    found = printed(ranks, strategy)
    for name, rows in found.items():
        for row, expected in zip(rows, alone[name], strict=True):
            assert row == pytest.approx(expected, rel=1e-4, abs=1e-6), name


@pytest.mark.slow
def test_printed_of_two_pipelines() -> None:
    script = SCRIPT.replace(
        "Linear(3, 1)", "Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))"
    )
    script = script.replace("scaler.scale(", "(").replace("kept, view]", "kept]")
    two = script.replace("6 // RANKS", "3").replace(
        'accelerator="cpu"', 'stages=2, accelerator="cpu"'
    )
    pipelines = fork_script(two, 4, "pipeline").json()
    for name, rows in fork_script(script, 1, "pipeline").json().items():
        for row, expected in zip(pipelines[name], rows, strict=True):
            assert row == pytest.approx(expected, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_that_add_up_differently_read_the_mean_by_name(strategy: str) -> None:
    script = """
        import torch
        from torchbus import session
        with session(strategy="STRATEGY", devices=2, launch="fork") as s:
            net = s.adopt(torch.nn.Linear(1, 1, bias=False))
            torch.nn.init.ones_(net.weight)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
            w = net(torch.ones(1, 1))
            a, b = (w * (s.rank + 1)).mean(), (w * 10).mean()
            total = a + b if s.rank == 0 else b * 2 + a
            total.backward()
            print(s.all_gather_object((a.item(), b.item(), total.item())))
    """
    result = fork_script(script.replace("STRATEGY", strategy))
    assert result.ok() and result.stdout == "[(1.5, 10.0, 16.5), (1.5, 10.0, 16.5)]\n"
