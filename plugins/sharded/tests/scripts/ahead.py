import json

import torch
from torch import nn
from torchbus import session

torch.set_default_dtype(torch.float64)


class Block(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            Block(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(4)
        )
        self.head = nn.Linear(4, 1)

    def forward(self, x, depth=4, backwards=False):
        blocks = list(self.blocks)[:depth]
        for block in reversed(blocks) if backwards else blocks:
            x = block(x)
        return self.head(x)


EARLY = []  # at the end of the first block: whether the second one is on its way already


def look(net):
    from torchbus_sharded._compat import groups_in

    net.blocks[0].register_forward_hook(
        lambda *_: EARLY.append(groups_in(net.blocks[1])[0]._all_gather_result is not None)
    )


def evaluated(net, x, depth=4):
    with torch.no_grad():
        net(x, depth)


def fails(net, x):
    handle = net.blocks[1].register_forward_pre_hook(lambda *_: 1 / 0)
    try:
        net(x)
    except ZeroDivisionError:
        handle.remove()


BETWEEN = {  # backward and step, step and forward
    "the order that was learnt": (lambda net, x: None, lambda net, x: None),
    "evaluations that stop early": (lambda net, x: evaluated(net, x, 1), lambda net, x: None),
    "a block by itself": (lambda net, x: net.blocks[0](x), lambda net, x: None),
    "forwards for training, without backward": (
        lambda net, x: net(x, 3),
        lambda net, x: net.blocks[2](x),
    ),
    "a forward that fails": (lambda net, x: None, fails),
}
STEPS = {
    "another depth each time": lambda net, x, step: net(x, depth=4 if step < 4 else 1 + step % 4),
    "the other way round": lambda net, x, step: net(x, backwards=step > 4),
    "twice": lambda net, x, step: (net(x) + net(x * 0.5, depth=2)) / 2,
}
WAYS = {name: (lambda net, x, step: net(x), *between) for name, between in BETWEEN.items()}
WAYS |= {name: (forward, *BETWEEN["the order that was learnt"]) for name, forward in STEPS.items()}


def outcome(way, mine=slice(None), looks=False):
    forward, before_step, after_step = way
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step, x in enumerate(torch.randn(9, 8, 4, generator=torch.Generator().manual_seed(1))):
        if step == 4 and looks:
            look(net)
        optimizer.zero_grad()
        forward(net, x[mine], step).square().mean().backward()
        before_step(net, x[mine])
        optimizer.step()
        after_step(net, x[mine])
    return [number for value in net.state_dict().values() for number in value.flatten().tolist()]


found = {name: [outcome(way)] for name, way in WAYS.items()}
for name, way in WAYS.items():
    with session(strategy="fsdp", devices=2, accelerator="cpu", launch="fork") as s:
        found[name] += s.all_gather_object(
            outcome(way, slice(4 * s.rank, 4 * s.rank + 4), name == "the order that was learnt")
        )
found["early"] = EARLY
print(json.dumps(found))
