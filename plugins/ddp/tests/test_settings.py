"""What no gradient shows must be the same on all ranks: hyperparameters, and the constants of the
loss.
"""

from __future__ import annotations

from pathlib import Path

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

HEAD = (SCRIPTS / "settings_head.py").read_text()

HYPER = SCRIPTS / "settings_hyperparameters.py"
CONSTANTS = SCRIPTS / "settings_constants.py"


def test_hyperparameters() -> None:
    found = fork_script(HYPER).json()
    told = {name: text for name, (text, _) in found.items()}
    assert told["alike"] == "ok" and not found["alike"][1]
    assert (
        "SGD, group 0: lr: 0.2 on rank 0, 0.1 on rank 1" in told["lr"]
        and "optuna" not in told["lr"]
    )
    assert "optimizer: Adagrad on rank 0, SGD on rank 1" in told["class"]
    assert "Adam, group 0: lr: 0.2 on rank 0, 0.1 on rank 1" in told["tensor"]
    assert "Adam, group 0: betas: [0.9, 0.9] on rank 0, [0.9, 0.99] on rank 1" in told["betas"]
    assert "SGD, group 1: weight_decay: 0.2 on rank 0, 0.1 on rank 1" in told["groups"]
    assert "Dropout(p=0.5, inplace=False) on rank 0" in told["dropout"]
    assert "lr: 0.2 on rank 0, 0.1 on rank 1" in told["later"], told["later"]
    assert "lr: 0.02 on rank 0, 0.01 on rank 1" in told["changed"], told["changed"]
    assert (
        "rank 1 comes with the parameters of SGD (1 tensors), but rank 0 comes with the parameters of SGD (2 tensors)"
        in told["shapes"]
    )
    assert (
        "Ray.tune is imported" in told["search"] and "Ray.tune is imported" in told["search shapes"]
    )


def test_constants_of_the_loss() -> None:
    found = fork_script(CONSTANTS).json()
    assert found["same"] == found["mixup"] == found["tokens"] == ["ok", []]
    for name, words in {
        "smooth": "0.7 on rank 0, 0.9 on rank 1",
        "factor": "0.3 on rank 0, 0.4 on rank 1",
        "classes": "on rank 0",
        "beta": "0.7 on rank 0, 0.5 on rank 1",
    }.items():
        assert (
            "the ranks do not train with the same loss" in found[name][0]
            and words in found[name][0]
        ), found[name]
    told, warned = found["began"]
    assert (
        told == "ok"
        and len(warned) == 1
        and "a factor of the loss is not the same on all ranks" in warned[0]
        and "s.reduce(mask.sum(), 'sum') / s.reduce(mask.numel(), 'sum')" in warned[0]
    )
    told, warned = found["uneven scaled"]
    assert told == "ok" and ["a factor of the loss is not the same" in text for text in warned] == [
        True
    ]
    told, warned = found["uneven factor"]
    assert told == "ok" and any("0.4 on rank 1, 0.4 on rank 2" in text for text in warned)
    for name in ("by_rows", "tokens", "same"):
        told, warned = found[f"uneven {name}"]
        assert told == "ok" and not [text for text in warned if "on rank 1" in text], found
    told, warned = found["whole"]
    assert told == "ok" and any("3 on rank 0, 2 on rank 1" in text for text in warned)


REMEDIES = """
import torch, torchbus
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
generator = torch.Generator().manual_seed(3)
x = torch.randn(48, 6, dtype=torch.float64, generator=generator)
kept = torch.rand(48, 4, generator=generator) > 0.4
def total(count):
    return torchbus.current().reduce(count, "sum") if torchbus.current() else count
def whole(rows):
    return torch.cat(torchbus.current().all_gather(rows)) if torchbus.current() else rows
def by_two_sums(out, y, mask):
    return ((out - y).abs() * mask).mean() / (total(mask.sum()) / total(mask.numel()))
def by_gathering(out, y, mask):
    return F.mse_loss(out, y) / whole(y).var()
def train(loss):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 4).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for a, y, mask in DataLoader(TensorDataset(x, x[:, :4] * 2, kept), batch_size=16):
        optimizer.zero_grad()
        loss(model(a), y, mask).backward()
        optimizer.step()
    return model.weight.detach()
for loss in by_two_sums, by_gathering:
    alone = train(loss)
    with session(strategy="ddp", devices=3, batch="global", launch="fork", accelerator="cpu"):
        difference = (train(loss) - alone).abs().max().item()
    assert difference < 1e-14, (loss, difference)
"""


def test_what_the_warning_of_a_factor_advises_is_exact_with_uneven_shares() -> None:
    result = fork_script(REMEDIES)
    assert result.ok() and "factor" not in result.stderr, result
