import copy
import io
import json
import pickle

import torch
from torch import nn
from torchbus import session

found = {}


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def step(net, optimizer):
    optimizer.zero_grad()
    net(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()


def run(strategy, net, optimizer):
    with session(strategy=strategy, devices=2, accelerator="cpu", launch="fork"):
        for _ in range(3):
            step(net, optimizer)


torch.manual_seed(0)
net = Net()
called = []
net[0].register_load_state_dict_post_hook(lambda module, keys: called.append("loaded"))
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
alone = copy.deepcopy(net)
lone = torch.optim.Adam(alone.parameters(), lr=0.1)


def same():
    return all(
        torch.allclose(ours, theirs, atol=1e-6)
        for ours, theirs in zip(net.parameters(), alone.parameters(), strict=True)
    )


run("fsdp", net, optimizer)
for _ in range(3):
    step(alone, lone)
found["trained"] = same()
kinds = [name for name in vars(net[0]) if name.endswith("hooks")]
found["left"] = {
    f"{index}.{name}": len(getattr(part, name))
    for index, part in enumerate(net)
    for name in kinds
    if getattr(part, name)
}
found["loaded"] = [
    str(net.load_state_dict(copy.deepcopy(net.state_dict()), assign=assign))
    for assign in (False, True)
]
found["called"] = called
net[0]._load_state_dict_post_hooks.clear()
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
torch.save(net, io.BytesIO())
found["pickled"] = type(pickle.loads(pickle.dumps(net))[0].weight).__name__
run("fsdp", copy.deepcopy(net), optimizer)
lone = torch.optim.Adam(alone.parameters(), lr=0.1)
run("fsdp", net, optimizer)
run("ddp", net, optimizer)
for _ in range(6):
    step(alone, lone)
found["again"] = same()
print(json.dumps(found))
