"""Each refusal of ddp and fsdp with tp=, in the words that the loop gets."""

import json

import torch
from tensor_head import PLAN, Mlp, loss_of, numbers, opened, session, train

from torchbus_sharded.strategy import FSDP

found = {}


def refused(name, options, make=Mlp, loop=None, ranks=4):
    try:
        with opened(ranks, **options):
            (loop or train)(make, numbers(8), 8, "sgd", epochs=1)
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
    else:
        found[name] = "not refused"


def outside(make, *_, **__):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = numbers(8).tensors
    for _ in range(2):
        weight = model.blocks[0].up.weight
        (loss_of(model, x, y) + weight.square().sum()).backward()
        optimizer.step()


def penalty(make, *_, **__):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = numbers(8).tensors
    x = x.requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (loss_of(model, x, y) + slope.square().mean()).backward()
    optimizer.step()


fsdp, ddp, wrong = {"strategy": "fsdp"}, {"strategy": "ddp"}, {"plan": {"blocks.*.upp": "colwise"}}
refused("ranks", fsdp | {"tp": 3})
refused("ranks, ddp", ddp | {"tp": 3})
refused("type", fsdp | {"tp": "two"})
refused("zero", fsdp | {"tp": 0})
refused("plan alone", fsdp | {"plan": PLAN}, ranks=1)
refused("plan alone, ddp", ddp | {"plan": PLAN}, ranks=1)
refused("no module", fsdp | {"tp": 2} | wrong)
refused("no module, ddp", ddp | {"tp": 2} | wrong)
refused("features", fsdp | {"tp": 2, "plan": {"last": "colwise", "first": "rowwise"}})
refused("auto", fsdp | {"tp": 2}, make=lambda: torch.nn.Sequential(torch.nn.Linear(5, 2)))
refused("pipeline", {"strategy": "pipeline", "tp": 2})
refused("penalty", fsdp | {"tp": 2, "plan": PLAN}, loop=penalty)
refused("penalty, ddp", ddp | {"tp": 2, "plan": PLAN}, loop=penalty)
refused("outside", fsdp | {"tp": 2, "plan": PLAN}, loop=outside)


class Lonely(FSDP):
    """Without the plugin that divides layers."""

    companions = ("sampler",)

    def __init__(self):
        super().__init__(tp=2)
        self.companions = ("sampler",)


try:
    with session(strategy=Lonely(), devices=4, accelerator="cpu", launch="fork"):
        train(Mlp, numbers(8), 8, "sgd", epochs=1)
except Exception as error:
    found["no plugin"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
