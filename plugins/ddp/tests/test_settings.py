"""What no gradient shows must be the same on all ranks: hyperparameters, and the constants of the loss."""

from __future__ import annotations

from torchbus.testing import fork_script

HEAD = """
import json, warnings, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import RanksDiverged
torch.manual_seed(0)
x, y = torch.randn(96, 4), torch.randint(3, (96,))
F = nn.functional

def train(make, loss_of=None, change=lambda optimizer, step, s: None, **options):
    with session(strategy="ddp", devices=2, launch="fork", **options) as s:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            told = "ok"
            try:
                model, optimizer = make(s)
                for step, (xb, yb) in enumerate(DataLoader(TensorDataset(x, y), 4)):
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(xb), yb) if loss_of is None else loss_of(s, model(xb), yb, step)
                    loss.backward()
                    change(optimizer, step, s)
                    optimizer.step()
            except RanksDiverged as error:
                told = str(error)
        both = s.all_gather_object(told)
    assert both[0] == both[1], both
    return [told, [str(one.message) for one in caught]]

def plain(s):
    model = nn.Linear(4, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)

class Odd(nn.Module):
    "Whose repr has an address, and a name of its own"
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(4, 3)
    def forward(self, x): return self.part(x)
    def extra_repr(self): return f"{object()!r}, {id(self):#x}"

def optimized(model, kind=torch.optim.SGD, **options):
    return model, kind(model.parameters(), **options)
"""


def test_hyperparameters() -> None:
    found = fork_script(HEAD + """
def later(s):
    model = nn.Linear(4, 3)
    model(x)
    return optimized(model, lr=0.1 * (1 + s.is_main))

def pick(values): return lambda s: values[s.is_main]

def double(optimizer, step, s):
    if step == 3 and s.is_main:
        optimizer.param_groups[0]["lr"] *= 2

def groups(s):
    model = nn.Linear(4, 3)
    decay = [0.1, 0.2][s.is_main]
    rest = {"params": [model.bias], "weight_decay": decay}
    return model, torch.optim.SGD([{"params": [model.weight]}, rest], lr=0.1)

found = {
    "lr": train(lambda s: optimized(nn.Linear(4, 3), lr=[0.1, 0.2][s.is_main])),
    "class": train(lambda s: optimized(nn.Linear(4, 3), [torch.optim.SGD, torch.optim.Adagrad][s.is_main], lr=0.1)),
    "tensor": train(lambda s: optimized(nn.Linear(4, 3), torch.optim.Adam, lr=torch.tensor([0.1, 0.2][s.is_main]))),
    "betas": train(lambda s: optimized(nn.Linear(4, 3), torch.optim.Adam, betas=(0.9, [0.99, 0.9][s.is_main]))),
    "groups": train(groups),
    "dropout": train(lambda s: optimized(nn.Sequential(nn.Linear(4, 3), nn.Dropout([0.1, 0.5][s.is_main])), lr=0.1)),
    "later": train(later),
    "changed": train(plain, change=double),
    "alike": train(lambda s: optimized(Odd(), torch.optim.Adam, lr=torch.tensor(0.1), betas=(0.9, 0.99))),
    "shapes": train(lambda s: optimized(nn.Linear(4, 3, bias=s.is_main), lr=0.1)),
}
import sys
sys.modules["ray.tune"] = sys
found["search"] = train(lambda s: optimized(nn.Linear(4, 3), lr=[0.1, 0.2][s.is_main]))
found["search shapes"] = train(lambda s: optimized(nn.Linear(4, 3, bias=s.is_main), [torch.optim.SGD, torch.optim.RMSprop][s.is_main], lr=0.1))
print(json.dumps(found))
""").json()
    told = {name: text for name, (text, _) in found.items()}
    assert told["alike"] == "ok" and not found["alike"][1]
    assert "SGD, group 0: lr: 0.2 on rank 0, 0.1 on rank 1" in told["lr"] and "optuna" not in told["lr"]
    assert "optimizer: Adagrad on rank 0, SGD on rank 1" in told["class"]
    assert "Adam, group 0: lr: 0.2 on rank 0, 0.1 on rank 1" in told["tensor"]
    assert "Adam, group 0: betas: [0.9, 0.9] on rank 0, [0.9, 0.99] on rank 1" in told["betas"]
    assert "SGD, group 1: weight_decay: 0.2 on rank 0, 0.1 on rank 1" in told["groups"]
    assert "Dropout(p=0.5, inplace=False) on rank 0" in told["dropout"]
    assert "lr: 0.2 on rank 0, 0.1 on rank 1" in told["later"], told["later"]
    assert "lr: 0.02 on rank 0, 0.01 on rank 1" in told["changed"], told["changed"]
    assert "rank 1 comes with the parameters of SGD (1 tensors) where rank 0 comes with the parameters of SGD (2 tensors)" in told["shapes"]
    assert "Ray.tune is imported" in told["search"] and "Ray.tune is imported" in told["search shapes"]


def test_constants_of_the_loss() -> None:
    found = fork_script(HEAD + """
import numpy as np
state = {"k": 0.0}

def began(s, out, target, step):
    one, two = F.cross_entropy(out, target), out.square().mean()
    loss = one - state["k"] * two
    state["k"] += 0.1 * (one - two).item()
    return loss

def mixup(s, out, target, step):
    lam = np.random.beta(1.0, 1.0)
    return lam * F.cross_entropy(out, target) + (1 - lam) * F.cross_entropy(out, target.flip(0))

def tokens(s, out, target, step):
    counted = target != 0
    return F.cross_entropy(out, target, reduction="none")[counted].sum() / max(counted.sum().item(), 1)

def smooth(s, out, target, step): return F.cross_entropy(out, target, label_smoothing=[0.1, 0.3][s.is_main])
def factor(s, out, target, step): return F.cross_entropy(out, target) + [0.4, 0.3][s.is_main] * out.square().mean()
def classes(s, out, target, step): return F.cross_entropy(out, target, weight=torch.tensor([1.0, 2.0, [3.0, 4.5][s.is_main]]))
def beta(s, out, target, step): return F.smooth_l1_loss(out, torch.zeros_like(out), beta=[0.5, 0.7][s.is_main])
def same(s, out, target, step): return 0.3 * F.cross_entropy(out, target) / (1 + step) + 0.01 * out.square().sum() / 12
def whole(s, out, target, step): return F.cross_entropy(out, target) / [2, 3][s.is_main]

cases = {"began": began, "mixup": mixup, "tokens": tokens, "smooth": smooth, "factor": factor, "classes": classes, "beta": beta, "same": same,
         "whole": whole}
print(json.dumps({name: train(plain, loss) for name, loss in cases.items()}))
""").json()
    assert found["same"] == found["mixup"] == found["tokens"] == ["ok", []]
    for name, words in {"smooth": "0.7 on rank 0, 0.9 on rank 1", "factor": "0.3 on rank 0, 0.4 on rank 1", "classes": "on rank 0",
                        "beta": "0.7 on rank 0, 0.5 on rank 1"}.items():  # fmt: skip
        assert "the ranks do not train with the same loss" in found[name][0] and words in found[name][0], found[name]
    told, warned = found["began"]
    assert told == "ok" and len(warned) == 1 and "a factor of the loss is not the same on all ranks" in warned[0] and "s.reduce(number)" in warned[0]
    told, warned = found["whole"]
    assert told == "ok" and any("3 on rank 0, 2 on rank 1" in text for text in warned)
