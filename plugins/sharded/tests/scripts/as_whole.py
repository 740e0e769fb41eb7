import copy
import json

import numpy
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torchbus import session

torch.set_default_dtype(torch.float64)


def init(model):
    model.eval()  # random numbers are alike on all ranks
    torch.manual_seed(3)


def assigned(weight):
    weight.data[0, 1] = 5.0
    weight.data[weight.data.abs() < 0.2] = 0.0
    with torch.no_grad():
        weight[2] = weight[0] * 2


def rows(model, weight):
    weight.grad[0].zero_()
    weight.grad[1:, 0:2].mul_(0.5).add_(weight.grad[1, 2:4])
    weight.grad[:, 3].clamp_(min=0.0)
    last = weight.data[-1]
    last += 1.0
    last[2] = last[0]
    weight.data[..., 0][1] = 0.25
    with torch.no_grad():
        weight[1].copy_(torch.arange(4.0))
        nn.init.constant_(model[2].weight[0], 0.5)
    return [weight.grad.tolist(), weight.data[1].tolist(), last.tolist(), (last * 2).sum().item()]


def named_views(model, weight):
    weight.data.select(0, 1).zero_()
    weight.data.narrow(0, 1, 2).add_(0.5)
    weight.data.narrow(1, -1, 1).mul_(2.0)
    weight.grad.unbind()[2].zero_()
    weight.grad.unbind(1)[0].fill_(0.25)
    for row in weight.data:
        row.div_(row.norm())
    first, second = weight.data.split([1, 2])
    first.copy_(second[1:] * 3)
    weight.grad.chunk(2)[1].sub_(1.0)
    [part.neg_() for part in weight.grad.split(3, dim=1)]
    return [weight.grad.tolist(), weight.data.tolist()]


WAYS = {
    "numpy": lambda model, weight: weight.detach().cpu().numpy(),
    "numpy of a sum": lambda model, weight: weight.grad.abs().mean().numpy(),
    "numpy of a list": lambda model, weight: numpy.array(
        [p.grad.norm() for p in model.parameters()]
    ),
    "tolist": lambda model, weight: weight.tolist(),
    "format": lambda model, weight: float(f"{weight.grad.norm():.6f}"),
    "deepcopy": lambda model, weight: [
        float(sum(p.norm() for p in copy.deepcopy(dict(model.named_parameters())).values()))
    ],
    "data, parts": lambda model, weight: setattr(weight, "data", weight.data.clamp(-0.2, 0.2)),
    "data, whole": lambda model, weight: setattr(weight, "data", torch.arange(12.0).view(3, 4)),
    "data, back again": lambda model, weight: nn.utils.vector_to_parameters(
        torch.arange(19.0), model.parameters()
    ),
    "indices": lambda model, weight: assigned(weight),
    "rows": lambda model, weight: numpy.hstack([numpy.ravel(one) for one in rows(model, weight)]),
    "named views": lambda model, weight: numpy.array(named_views(model, weight)),
    "init": lambda model, weight: (
        init(model),
        nn.init.xavier_uniform_(weight),
        nn.init.trunc_normal_(model[2].weight),
    ),
    "noise": lambda model, weight: (init(model), weight.data.add_(torch.randn_like(weight))),
    "mask": lambda model, weight: (
        init(model),
        weight.data.mul_(torch.empty_like(weight.data).bernoulli_(0.5)),
    ),
}


def outcome(way, mine=slice(None)):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)
    )  # 3 rows, and 1: parts of different sizes, and none
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(1))
    seen = []
    for batch in x:
        optimizer.zero_grad()
        model(batch[mine]).square().mean().backward()
        optimizer.step()
        read = way(model, model[0].weight)
        seen += (
            numpy.ravel(read).tolist()
            if isinstance(read, (numpy.ndarray, numpy.float64, list, float))
            else []
        )
    return seen + [
        number for value in model.state_dict().values() for number in value.flatten().tolist()
    ]


before = set(vars(DTensor))
found = {name: [outcome(way)] for name, way in WAYS.items()}
with session(strategy="fsdp", devices=2, accelerator="cpu", launch="fork") as s:
    for name, way in WAYS.items():
        found[name] += s.all_gather_object(outcome(way, slice(4 * s.rank, 4 * s.rank + 4)))
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        model.weight.detach().numpy()[0] = 1.0
    except ValueError as error:
        found["written into an array"] = str(error)
    try:
        model.weight.data = torch.ones(3, 2)
    except Exception as error:
        found["another shape"] = str(error)
found["left"] = sorted(set(vars(DTensor)) - before)
print(json.dumps(found))
