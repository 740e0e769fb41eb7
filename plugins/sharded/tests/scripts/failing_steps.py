"""Steps that raise, caught by the loop, against one process. The argument says where they raise."""

import json
import sys

import torch
from torch.utils.data import DataLoader
from torchbus import session

torch.set_default_dtype(torch.float64)
DATA = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
WHERE = sys.argv[1]


class Bad(Exception):
    pass


class Halting(torch.optim.SGD):
    """Raises after its parent has stepped."""

    calls = 0

    def step(self, closure=None):
        super().step(closure)
        self.calls += 1
        if WHERE == "after" and self.calls == 3:
            raise Bad


def train(batch_size, rank):
    torch.manual_seed(0)
    nets = [torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)) for _ in range(2)]
    optimizers = [Halting(net.parameters(), lr=0.1, momentum=0.5) for net in nets]
    calls = []

    def hook(*_):
        calls.append(0)
        if WHERE != "after" and len(calls) % 3 == 0 and not (WHERE == "one" and rank):
            raise Bad

    optimizers[0].register_step_pre_hook(hook)
    for x in DataLoader(DATA, batch_size=batch_size):
        for net, optimizer in zip(nets, optimizers):
            optimizer.zero_grad()
            (net(x) - 1).square().mean().backward()
            try:
                optimizer.step()
            except Bad:
                continue
    return torch.cat([p.detach().reshape(-1) for net in nets for p in net.parameters()])


alone = train(8, 0)
with session(strategy="ddp_sharded", devices=2, accelerator="cpu", launch="fork") as s:
    ours = train(4, s.rank)
print(json.dumps(float((ours - alone).abs().max())))
