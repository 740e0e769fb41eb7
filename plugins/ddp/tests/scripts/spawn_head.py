import functools
import gc
import threading

import torch
from torch import nn
from torchbus import session

gc.freeze()  # a session looks through all objects; those of torch need not be among them

torch.set_default_dtype(torch.float64)


def data():
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(1))


def steps(model, optimizer, x):
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@session(strategy="ddp_spawn", devices=2, accelerator="cpu")
def train(model, optimizer, x, *, note="", rank=None):
    from torchbus.session import current

    s = current()
    steps(model, optimizer, x[s.rank * 4 : s.rank * 4 + 4])
    print("from rank", s.rank)
    return {
        "ranks": s.world_size,
        "note": note,
        "agree": torch.equal(*s.all_gather(model.weight.detach())),
    }


class Model(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)
        self.transform = nn.Module()


def make():
    torch.manual_seed(0)
    model = Model()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
