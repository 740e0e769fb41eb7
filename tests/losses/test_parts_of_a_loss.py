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


RETURNED = """
    import sys
    import torch
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, TensorDataset
    from torchbus import session

    class Tasks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = torch.nn.Linear(4, 1), torch.nn.Linear(4, 3)
            self.log_vars = torch.nn.Parameter(torch.zeros(2))

        def forward(self, x, y, label):
            regression = F.mse_loss(self.one(x).squeeze(1), y)
            classes = self.two(x)
            chosen = F.cross_entropy(classes, label, ignore_index=-100)
            each = {"regression": regression, "chosen": chosen}
            scaled = (torch.exp(-self.log_vars) * torch.stack(list(each.values()))).sum()
            accuracy = (classes.argmax(1) == label).double().mean()
            return scaled + self.log_vars.sum(), each, regression, accuracy

    with session(strategy="ddp", devices=int(sys.argv[1]), batch="global", accelerator="cpu"):
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        x = torch.randn(29, 4)
        label = torch.randint(0, 3, (29,))
        label[::3] = -100
        loader = DataLoader(TensorDataset(x, x.sum(1), label), batch_size=8)
        net = Tasks()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        total = 0.0
        for batch in loader:
            optimizer.zero_grad()
            loss, each, first, accuracy = net(*batch)
            loss.backward()
            optimizer.step()
            total += first.item()
            print(f"{loss.item():.9f} {first.item():.9f} {each['chosen'].item():.9f} {total:.9f}")
            #
"""


def test_parts_that_a_model_returns_are_of_all_ranks_and_not_warned_of() -> None:
    alone, two = (fork_script(RETURNED, ranks) for ranks in (1, 2))
    assert two.ok() and two.stdout == alone.stdout
    assert "rank's share" not in two.stderr, two.stderr


def test_what_else_the_model_returns_is_warned_of() -> None:
    two = fork_script(RETURNED.replace("#\n", "print(accuracy.item())\n"), 2)
    assert two.ok() and "computes 'accuracy' from this rank's share" in two.stderr


def test_a_part_that_is_read_before_the_backward_is_warned_of() -> None:
    early = RETURNED.replace("loss.backward()", "print(first.item()); loss.backward()")
    two = fork_script(early, 2)
    assert two.ok() and "first.item() after loss.backward()" in two.stderr, two.stderr
