"""Averages of the weights under strategies, and in checkpoints: torchbus-average."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from torchbus_checkpoint.disk import folder as checkpoints
from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "averages.py"
EMA = {"ema_decay": 0.9}
pytestmark = [pytest.mark.timeout(300)]


def trained(folder, options, epochs=3, ends_at=None):
    """Run the script, which ends early with exit status 7 where it is told to."""
    path = folder / "result.pt"
    words = json.dumps([options, epochs, ends_at, str(path)])
    result = fork_script(SCRIPT, words, cwd=folder, timeout_s=200)
    assert result.ok(7 if ends_at else 0)
    return None if ends_at else torch.load(path, weights_only=True)


def by_hand(epochs=3):
    """The same in one plain process."""
    torch.manual_seed(3)
    x = torch.randn(48, 6, dtype=torch.float64)
    data = TensorDataset(x, x.sum(1, keepdim=True).sin())
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
    model = torch.nn.Sequential(*layers).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            averaged.update_parameters(model)
        with torch.no_grad():
            for x, _ in loader:
                averaged(x)
    return {"averaged": averaged.module.state_dict(), "trained": model.state_dict()}


def differences(one, other):
    return [
        ((one[kind][name] - other[kind][name]).abs().max() / other[kind][name].abs().max()).item()
        for kind in ("averaged", "trained")
        for name in other[kind]
    ]


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param({"strategy": None}, marks=pytest.mark.slow),
        pytest.param({"strategy": "ddp", "devices": 2}, marks=pytest.mark.slow),
        pytest.param({"strategy": "ddp", "devices": 3}, marks=pytest.mark.slow),
        {"strategy": "fsdp", "devices": 2, "accelerator": "cpu"},
        pytest.param({"strategy": "ddp_sharded", "devices": 2}, marks=pytest.mark.slow),
    ],
    ids=lambda strategy: f"{strategy['strategy']}-{strategy.get('devices', 1)}",
)
def test_averages_on_ranks_are_those_of_one_process(tmp_path, strategy):
    split = {} if strategy["strategy"] is None else {"batch": "global"}
    found = trained(tmp_path, {**strategy, **split, **EMA})
    assert max(differences(found, by_hand())) < 1e-13


def own_state(folder):
    """The plugin's state in the last checkpoint of rank 0."""
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    plugins = checkpoints.read_file(last, "rank-0")["plugins"]
    (state,) = [one for name, one in plugins.items() if "average" in name.lower()]
    return state


@pytest.mark.parametrize(
    ("strategy", "often", "in_place"),
    [
        pytest.param("ddp", "every_n_steps", False, id="ddp in training", marks=pytest.mark.slow),
        pytest.param("fsdp", "every_n_steps", False, id="fsdp in training", marks=pytest.mark.slow),
        pytest.param("ddp", "every_n_epochs", True, id="ddp in evaluation", marks=pytest.mark.slow),
        pytest.param(
            "fsdp", "every_n_epochs", True, id="fsdp in evaluation", marks=pytest.mark.slow
        ),
        pytest.param("pipeline", "every_n_steps", False, id="pipeline in training"),
        pytest.param(
            "pipeline", "every_n_epochs", True, id="pipeline in evaluation", marks=pytest.mark.slow
        ),
    ],
)
def test_a_run_that_goes_on_has_the_same_averages(tmp_path, strategy, often, in_place):
    """Also if the checkpoint was written while averages stood in the place of the weights."""
    options = {"strategy": strategy, "devices": 2, "accelerator": "cpu", "batch": "global", **EMA}
    saves = {"checkpoint": str(tmp_path / "checkpoints"), often: 1}
    trained(tmp_path, {**options, **saves}, ends_at=[1, 3])
    entries = own_state(tmp_path)["averages"][0]["entries"]
    assert [entry["training"] is not None for entry in entries] == [in_place] * 4
    resumed = trained(tmp_path, {**options, **saves})
    whole = trained(tmp_path, options)
    assert resumed["seen"] == whole["seen"][-len(resumed["seen"]) :]
    assert differences(resumed, whole) == [0.0] * 8


@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_goes_on_that_was_killed_before_its_average_began(tmp_path, devices):
    options = {"devices": devices, "accelerator": "cpu", "batch": "global", "swa_start": 8}
    saves = {"checkpoint": str(tmp_path / "checkpoints"), "every_n_steps": 1}
    trained(tmp_path, {**options, **saves}, ends_at=[1, 1])
    assert own_state(tmp_path)["averages"][0]["entries"] == []
    resumed = trained(tmp_path, {**options, **saves})
    assert differences(resumed, trained(tmp_path, options)) == [0.0] * 8


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path):
    options = {"strategy": "fsdp", "accelerator": "cpu", "batch": "global", **EMA}
    saves = {"checkpoint": str(tmp_path / "checkpoints"), "every_n_steps": 2}
    trained(tmp_path, {**options, **saves, "devices": 2}, ends_at=[1, 3])
    resumed = trained(tmp_path, {**options, **saves, "devices": 3})
    assert max(differences(resumed, by_hand())) < 1e-13


def test_a_checkpoint_after_evaluation_has_the_averages_and_loads_as_weights_only(tmp_path):
    options = {"strategy": "ddp", "devices": 2, "batch": "global", **EMA}
    found = trained(tmp_path, {**options, "checkpoint": str(tmp_path / "checkpoints")})
    last = sorted((tmp_path / "checkpoints").glob("step-*"))[-1]
    model = checkpoints.read_file(last, "model")
    assert all(torch.equal(model[name], found["averaged"][name]) for name in model)
    trained_weights = [entry["training"] for entry in own_state(tmp_path)["averages"][0]["entries"]]
    assert all(map(torch.equal, trained_weights, found["trained"].values()))


def test_dp_finds_the_order_of_rows_without_putting_averages_in_place():
    script = """
        import sys, torch
        from torchbus import session

        class Views(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = torch.nn.Linear(4, 6)

            def forward(self, x):
                return self.net(torch.cat([x, 2 * x])).tanh()

        torch.set_default_dtype(torch.float64)
        ranks = int(sys.argv[1])
        with session(strategy="dp" if ranks > 1 else None, devices=ranks, accelerator="cpu", ema_decay=0.9):
            torch.manual_seed(0)
            net = Views()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(4):
                first, second = net(torch.randn(8, 4)).chunk(2)
                loss = (first * second).sum(1).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(f"{loss.item():.9f}")
    """
    alone, two = (fork_script(script, ranks) for ranks in (1, 2))
    assert two.ok() and two.stdout == alone.stdout
