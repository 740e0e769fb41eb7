import json
import sys

import torch
from settings_head import Odd, optimized, plain, train, x
from torch import nn


def later(s):
    model = nn.Linear(4, 3)
    model(x)
    return optimized(model, lr=0.1 * (1 + s.is_main))


def pick(values):
    return lambda s: values[s.is_main]


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
    "class": train(
        lambda s: optimized(
            nn.Linear(4, 3), [torch.optim.SGD, torch.optim.Adagrad][s.is_main], lr=0.1
        )
    ),
    "tensor": train(
        lambda s: optimized(
            nn.Linear(4, 3), torch.optim.Adam, lr=torch.tensor([0.1, 0.2][s.is_main])
        )
    ),
    "betas": train(
        lambda s: optimized(nn.Linear(4, 3), torch.optim.Adam, betas=(0.9, [0.99, 0.9][s.is_main]))
    ),
    "groups": train(groups),
    "dropout": train(
        lambda s: optimized(
            nn.Sequential(nn.Linear(4, 3), nn.Dropout([0.1, 0.5][s.is_main])), lr=0.1
        )
    ),
    "later": train(later),
    "changed": train(plain, change=double),
    "alike": train(
        lambda s: optimized(Odd(), torch.optim.Adam, lr=torch.tensor(0.1), betas=(0.9, 0.99))
    ),
    "shapes": train(lambda s: optimized(nn.Linear(4, 3, bias=s.is_main), lr=0.1)),
}

sys.modules["ray.tune"] = sys
found["search"] = train(lambda s: optimized(nn.Linear(4, 3), lr=[0.1, 0.2][s.is_main]))
found["search shapes"] = train(
    lambda s: optimized(
        nn.Linear(4, 3, bias=s.is_main), [torch.optim.SGD, torch.optim.RMSprop][s.is_main], lr=0.1
    )
)
print(json.dumps(found))
