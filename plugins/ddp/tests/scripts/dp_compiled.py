import json
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchbus import session

warnings.simplefilter("ignore")
torch.ones(1, requires_grad=True).sum().backward()  # a build for GPUs counts them before a trace
torch.set_default_dtype(torch.float64)
DATA = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
rows = []


def backend(graph, inputs):
    def run(*tensors):
        rows.extend(
            len(tensor)
            for tensor in tensors
            if type(tensor) is torch.Tensor and tensor.shape[1:] == (4,)
        )
        return graph(*tensors)

    return run


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def train(order):
    torch._dynamo.reset()
    torch.manual_seed(0)
    net, called = Net(), None
    if order == "the model first":
        called = torch.compile(net, backend=backend)
    if order == "in place":
        net.compile(backend=backend)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    if order == "the optimizer first":
        called = torch.compile(net, backend=backend)
    for x in DataLoader(DATA, batch_size=8):
        optimizer.zero_grad()
        out = (net if called is None else called)(x)
        (out @ out.T).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


found = {}
for order in ("the model first", "the optimizer first", "in place"):
    alone = train(order)
    rows.clear()
    with session(strategy="dp", devices=2, accelerator="cpu", launch="fork"):
        ours = train(order)
    found[order] = [float((ours - alone).abs().max()), rows[-1]]
print(json.dumps(found))
