"""Unfreezing by schedule under strategies, and in checkpoints: torchbus-finetune."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "unfreezing.py"
UNFREEZE = {"layer2": 4, "layer1": 9, "norm": 1000}
pytestmark = [pytest.mark.timeout(300)]


def trained(folder, options, kind="all", ends_at=None):
    """Run the script, which ends early with exit status 7 where it is told to."""
    path = folder / "result.pt"
    words = json.dumps([{"unfreeze": UNFREEZE, **options}, kind, ends_at, str(path)])
    result = fork_script(SCRIPT, words, cwd=folder, timeout_s=200)
    assert result.ok(7 if ends_at else 0)
    return None if ends_at else torch.load(path, weights_only=True)


def net():
    """The script's model, in a plain process."""
    torch.manual_seed(3)
    x = torch.randn(48, 6, dtype=torch.float64)
    data = TensorDataset(x, x.sum(1, keepdim=True).sin())
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 5)
    model = torch.nn.ModuleDict(
        dict(
            zip(("layer1", "norm", "layer2", "head"), (*layers, torch.nn.Linear(5, 1)), strict=True)
        )
    )
    return model.double(), data


def predict(parts, x):
    hidden = torch.tanh(parts["norm"](parts["layer1"](x)))
    return parts["head"](torch.tanh(parts["layer2"](hidden)))


def by_hand(kind="all", factor=1.0, batches=1):
    """The same in one plain process. ``batches``: how many make a step."""
    model, data = net()
    body = [one for name in ("layer1", "norm", "layer2") for one in model[name].parameters()]
    optimizer = torch.optim.AdamW(
        model.parameters() if kind == "all" else model["head"].parameters(),
        lr=0.05,
        weight_decay=0.1,
    )
    if kind == "head":
        optimizer.add_param_group({"params": body, "lr": 0.05 * factor})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    loader = DataLoader(data, batch_size=8 * batches, shuffle=True)
    step = 0
    for _ in range(3):
        model.train()
        model["norm"].eval()
        for x, y in loader:
            for name, first in UNFREEZE.items():
                model[name].requires_grad_(step >= first)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(predict(model, x), y).backward()
            optimizer.step()
            scheduler.step()
            averaged.update_parameters(model)
            step += 1
    return {"trained": model.state_dict(), "averaged": averaged.module.state_dict()}


def largest_difference(one, other):
    return max(
        (one[name] - other[name]).abs().max().item() / max(other[name].abs().max().item(), 1e-9)
        for name in other
    )


STRATEGIES = [
    {"strategy": "ddp", "devices": 2},
    {"strategy": "ddp", "devices": 3},
    {"strategy": "fsdp", "devices": 2, "accelerator": "cpu"},
    {"strategy": "ddp_sharded", "devices": 2},
]


def ids(value):
    return f"{value['strategy']}-{value['devices']}" if isinstance(value, dict) else value


@pytest.mark.share(6)
@pytest.mark.parametrize("kind", ["all", "head"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=ids)
def test_ranks_unfreeze_as_one_process(tmp_path, strategy, kind):
    options = {**strategy, "batch": "global"}
    factor = {"unfreeze_lr": 0.5} if kind == "head" else {}
    found = trained(tmp_path, {**options, **factor}, kind)
    assert largest_difference(found["trained"], by_hand(kind, 0.5)["trained"]) < 1e-12


@pytest.mark.slow
def test_averages_have_what_is_unfrozen_later(tmp_path):
    options = {"strategy": "ddp", "devices": 2, "batch": "global", "ema_decay": 0.9}
    found, expected = trained(tmp_path, options, "head"), by_hand("head")
    for kind in ("trained", "averaged"):
        assert largest_difference(found[kind], expected[kind]) < 1e-12
    assert largest_difference(found["averaged"], expected["trained"]) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES[1:], ids=ids)
def test_windows_unfreeze_at_real_steps(tmp_path, strategy):
    """Three batches of each rank make a step, so six steps an epoch become two."""
    options = {**strategy, "batch": "global", "accumulate_grad_batches": 3}
    found = trained(tmp_path, options)
    assert largest_difference(found["trained"], by_hand(batches=3)["trained"]) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("ends_at", [[0, 2], [1, 1], [2, 0], [2, 5]], ids=str)
@pytest.mark.parametrize("kind", ["all", "head"])
@pytest.mark.parametrize("strategy", [STRATEGIES[0], *STRATEGIES[2:]], ids=ids)
def test_a_run_that_goes_on_unfreezes_as_one_that_was_not_interrupted(
    tmp_path, strategy, kind, ends_at
):
    options = {**strategy, "batch": "global"}
    saves = {"checkpoint": str(tmp_path / "checkpoints"), "every_n_steps": 1}
    trained(tmp_path, {**options, **saves}, kind, ends_at)
    resumed = trained(tmp_path, {**options, **saves}, kind)
    whole = trained(tmp_path, options, kind)
    assert largest_difference(resumed["trained"], whole["trained"]) == 0
    assert resumed["rates"] == whole["rates"]


@pytest.mark.parametrize(
    "often", [pytest.param("every_n_steps", marks=pytest.mark.slow), "every_n_epochs"]
)
def test_a_run_goes_on_bit_for_bit(tmp_path, often):
    """Also from a checkpoint between epochs, and with epochs in the schedule."""
    unfreeze = {"unfreeze": {"layer2": "epoch 1", "layer1": "epoch 2", "norm": 15}}
    saves = {"checkpoint": str(tmp_path / "checkpoints"), often: 1}
    trained(tmp_path, {**unfreeze, **saves}, "head", [1, 3])
    resumed = trained(tmp_path, {**unfreeze, **saves}, "head")
    whole = trained(tmp_path, unfreeze, "head")
    assert largest_difference(resumed["trained"], whole["trained"]) == 0
    assert resumed["rates"] == whole["rates"]
