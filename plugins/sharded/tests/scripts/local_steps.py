import json
import sys

import torch
from torch import nn, optim
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchbus import session

torch.set_default_dtype(torch.float64)


class Cosine(optim.Adam):
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= 0.5
        return super().step(closure)


WAYS = {
    "Adadelta": (optim.Adadelta, {}),
    "Adagrad": (optim.Adagrad, {}),
    "Adam": (optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "Adamax": (optim.Adamax, {}),
    "AdamW": (optim.AdamW, {}),
    "ASGD": (optim.ASGD, {"t0": 1}),
    "NAdam": (optim.NAdam, {}),
    "RAdam": (optim.RAdam, {}),
    "RMSprop": (optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "Rprop": (optim.Rprop, {}),
    "SGD": (optim.SGD, {}),
    "SGD, momentum": (optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "foreach": (optim.Adam, {"foreach": True}),
    "fused": (optim.AdamW, {"fused": True}),
    "maximize": (optim.SGD, {"maximize": True, "momentum": 0.5}),
    "a class of one's own": (Cosine, {}),
}


class Seen(TorchDispatchMode):
    parts = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.parts |= (
            any(issubclass(one, DTensor) for one in types)
            and func is not torch.ops.aten.view.default
        )
        return func(*args, **kwargs or {})


def train(cls, options, rank, world_size):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1)
    )  # 3 rows, and 1: parts of different sizes, and none
    optimizer = cls(model.parameters(), lr=0.01, **options)
    seen, hooked = Seen(), []
    optimizer.register_step_post_hook(
        lambda optimizer, args, kwargs: hooked.append(
            type(optimizer.param_groups[0]["params"][0]).__name__
        )
    )
    data = torch.Generator().manual_seed(1)
    for number, x in enumerate(torch.randn(4, 8, 5, generator=data)):
        optimizer.zero_grad()
        model(x[rank::world_size]).square().mean().backward()
        with seen if number else torch.no_grad():
            optimizer.step()
    kinds = [
        type(value).__name__
        for entry in optimizer.state.values()
        for value in entry.values()
        if torch.is_tensor(value) and value.dim()
    ]
    states = [
        value
        for entry in optimizer.state_dict()["state"].values()
        for value in entry.values()
        if torch.is_tensor(value)
    ]
    values = torch.cat(
        [value.double().reshape(-1) for value in [*model.state_dict().values(), *states]]
    )
    return values, {
        "parts in operations": seen.parts,
        "state": sorted(set(kinds)),
        "hooks": sorted(set(hooked)),
    }


UPDATES = [
    (sys.modules[cls.__module__], cls.__module__.rpartition(".")[2])
    for cls, _ in WAYS.values()
    if cls is not Cosine
]
updates = [vars(module).get(name) for module, name in UPDATES]
found = {}
with session(strategy="fsdp", devices=2, accelerator="cpu", launch="fork") as s:
    ours = {}
    for name, (cls, options) in WAYS.items():
        ours[name], found[name] = train(cls, options, s.rank, 2)
for name, values in ours.items():
    alone, _ = train(*WAYS[name], 0, 1)
    found[name]["apart"] = float((values - alone).abs().max() / alone.abs().max())
print(
    json.dumps(
        found
        | {
            "put back": all(
                vars(module).get(name) is update
                for (module, name), update in zip(UPDATES, updates, strict=True)
            )
        }
    )
)
