import json

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.errors import Unsupported

torch.set_default_dtype(torch.float64)
DATA = torch.randn(24, 5, generator=torch.Generator().manual_seed(1))


class TrustRatio(torch.optim.Optimizer):
    """Scales the step of each parameter by its norm, as LAMB and LARS do."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p].setdefault("mean", torch.zeros_like(p.data))
                kept.mul_(0.9).add_(p.grad, alpha=0.1)
                update = kept / (p.grad.abs() + 1e-6)
                ratio = p.data.norm() / update.pow(2).sum().sqrt()
                p.data.add_(update, alpha=-group["lr"] * float(ratio))


class Centralised(torch.optim.SGD):
    """Removes the mean of each row's gradient, and its length."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() > 1:
                    p.grad.add_(-p.grad.mean(dim=1, keepdim=True))
                p.grad.div_(p.grad.norm() + 1e-8)
        return super().step(closure)


def train(kind, batch_size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    optimizer = kind(model.parameters(), lr=0.05)
    for x in DataLoader(DATA, batch_size=batch_size):
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    return torch.cat([value.flatten() for value in model.state_dict().values()])


found = {}
for kind in (TrustRatio, Centralised):
    alone = train(kind, 8)
    for strategy in ("ddp_sharded", "fsdp"):
        try:
            with session(strategy=strategy, devices=2, accelerator="cpu", launch="fork"):
                divided = train(kind, 4)
            found[f"{kind.__name__}, {strategy}"] = float((divided - alone).abs().max())
        except (
            Unsupported
        ) as refusal:  # DTensor of torch 2.14 adds no mean to a gradient of one row
            found[f"{kind.__name__}, {strategy}"] = str(refusal)
print(json.dumps(found))
