import json

import torch
from torch import nn
from torchbus import session

torch.set_default_dtype(torch.float64)


def search(mine):
    torch.manual_seed(0)
    data = torch.randn(4, 8, 3, generator=torch.Generator().manual_seed(1))
    net, scale = nn.Linear(3, 1), torch.ones(3, requires_grad=True)
    optimizer, searcher = (
        torch.optim.SGD(net.parameters(), lr=0.1),
        torch.optim.Adam([scale], lr=0.1),
    )
    for x in data:
        scale.grad = torch.autograd.grad(net(x[mine] * scale).square().mean(), [scale])[0]
        searcher.step()
        net(x[mine] * scale).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return scale.detach().tolist()


alone = search(slice(None))
with session(strategy="fsdp", devices=2, launch="fork", accelerator="cpu") as s:
    both = s.all_gather_object(search(slice(4 * s.rank, 4 * s.rank + 4)))
apart = max(abs(ours - one) for rank in both for ours, one in zip(rank, alone, strict=True))
print(json.dumps({"apart": apart}))
