"""What torch's compiler counts in a loop outside of a session, and inside of some."""

import json
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader
from torchbus import session

warnings.simplefilter("ignore")
torch.ones(1, requires_grad=True).sum().backward()  # a build for GPUs counts them before a trace


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        torch._dynamo.graph_break()
        return self.second(x)


def whole(net: nn.Module) -> Callable[..., Any]:
    return torch.compile(net, backend="eager")


def in_place(net: nn.Module) -> Callable[..., Any]:
    net.compile(backend="eager")
    return net


def a_part(net: Any) -> Callable[..., Any]:
    net.first = torch.compile(net.first, backend="eager")
    return net


def loop(compiled: Callable[[nn.Module], Callable[..., Any]], ranks: int) -> list[Any]:
    """A ragged last batch, so another shape; and an evaluation without gradients."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    net = Net()
    model = compiled(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        for x in DataLoader(torch.randn(22 // ranks * ranks, 4), batch_size=4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        net.eval()
        with torch.no_grad():
            model(torch.ones(4, 4))
        net.train()
    return [dict(counters["stats"]), sum(counters["graph_break"].values())]


WAYS = (whole, in_place, a_part)
found: dict[str, dict[str, list[Any]]] = {way.__name__: {} for way in WAYS}
for way in WAYS:
    mine = found[way.__name__]
    mine["outside"] = loop(way, 1)
    with session():
        mine["bare"] = loop(way, 1)
    with session("sampler", "log", strategy="ddp", devices=1, accelerator="cpu"):
        mine["one rank"] = loop(way, 1)
    with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork") as s:
        for rank, theirs in enumerate(s.all_gather_object(loop(way, 2))):
            mine[f"rank {rank}"] = theirs
print(json.dumps(found))
