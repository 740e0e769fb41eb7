import ast
import json
import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import RanksDiverged

torch.manual_seed(0)
x, y = torch.randn(200, 4), torch.randint(3, (200,))
F = nn.functional
OPTIONS = ast.literal_eval(sys.argv[1])


def opened():
    return session(devices=2, accelerator="cpu", launch="fork", **OPTIONS)


def told_in(loop):
    """What the session of a loop raises, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        told = "ok"
        try:
            with opened() as s:
                loop(s)
        except RanksDiverged as error:
            told = str(error)
    return [told, [str(one.message) for one in caught]]


def train(s, make, loss_of=F.cross_entropy, change=lambda optimizer, step: None):
    model, optimizer = make(s)
    for step, (xb, yb) in enumerate(DataLoader(TensorDataset(x, y), 4)):
        optimizer.zero_grad()
        loss_of(model(xb), yb).backward()
        change(optimizer, step)
        optimizer.step()


def optimized(model, kind=torch.optim.SGD, **options):
    return model, kind(model.parameters(), **({"lr": 0.1} | options))


def plain(s):
    return optimized(nn.Linear(4, 3))


def other(s, one, two):
    return two if s.is_main else one


def loose(s):
    model, offset = nn.Linear(4, 3), torch.zeros(3, requires_grad=True)
    return model, torch.optim.SGD([offset], lr=other(s, 0.1, 0.2))


made = {
    "lr": lambda s: optimized(nn.Linear(4, 3), lr=other(s, 0.1, 0.2)),
    "class": lambda s: optimized(nn.Linear(4, 3), other(s, torch.optim.SGD, torch.optim.Adagrad)),
    "dropout": lambda s: optimized(nn.Sequential(nn.Linear(4, 3), nn.Dropout(other(s, 0.1, 0.5)))),
    "size": lambda s: optimized(nn.Linear(4, 3, bias=s.is_main)),
    "loose": loose,
}
found = {name: told_in(make) for name, make in made.items()}

state = {"k": 0.0}


def began(s, out, target):
    one, two = F.cross_entropy(out, target), out.square().mean()
    loss = one - state["k"] * two
    state["k"] += 0.1 * (one - two).item()
    return loss


def tokens(s, out, target):
    counted = target != 0
    return F.cross_entropy(out, target, reduction="none")[counted].sum() / max(
        counted.sum().item(), 1
    )


def doubled(s, optimizer, step):
    optimizer.param_groups[0]["lr"] *= 2 if step == 3 and s.is_main else 1


def dropping(s):
    return optimized(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1)), torch.optim.Adam)


loops = {
    "alike": lambda s: train(s, dropping, lambda *both: tokens(s, *both)),
    "changed": lambda s: train(s, plain, change=lambda *both: doubled(s, *both)),
    "factor": lambda s: train(
        s,
        plain,
        lambda out, target: F.cross_entropy(out, target) + other(s, 0.3, 0.4) * out.square().mean(),
    ),
    "began": lambda s: train(s, plain, lambda *both: began(s, *both)),
}
found |= {name: told_in(loop) for name, loop in loops.items()}
print(json.dumps(found))
