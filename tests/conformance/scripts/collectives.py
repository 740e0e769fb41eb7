"""Collectives of rank 0 in a step, by hand and in a session, in ranks that this script makes."""

import json
import os
import socket
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch._dynamo  # before the ranks are made, which would import it each
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

PLAN = {"blocks.*.0": "colwise", "blocks.*.2": "rowwise"}
BY_TORCH = {"blocks.*.0": ColwiseParallel(), "blocks.*.2": RowwiseParallel()}
LEARNED, STEPS = 16, 2
Loop = Callable[[], int]
SGD = torch.optim.SGD


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(2)
        )
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def count(model: nn.Module, optimizer: torch.optim.Optimizer, shares_loss: bool) -> int:
    """How many collectives the last steps take, after some in which a session learns."""
    loader = DataLoader(TensorDataset(torch.ones(256, 8), torch.ones(256, 1)), batch_size=4)
    seen = profile(activities=[ProfilerActivity.CPU])
    for number, (x, y) in enumerate(loader):
        if number == LEARNED:
            seen.start()
        if number == LEARNED + STEPS:
            break
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        if shares_loss:
            dist.all_reduce(loss.detach())
        optimizer.step()
    seen.stop()
    return sum(one.count for one in seen.key_averages() if one.key.startswith("c10d::"))


def wrapped() -> int:
    model = DistributedDataParallel(Net())
    return count(model, SGD(model.parameters(), 0.1), True)


def zero() -> int:
    model = DistributedDataParallel(Net())
    return count(model, ZeroRedundancyOptimizer(model.parameters(), SGD, lr=0.1), True)


def sharded(tp: int | None) -> int:
    model, mesh = Net(), None
    if tp is not None:
        both = init_device_mesh("cpu", (2, tp), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, both["tp"], BY_TORCH)
        mesh = both["dp"]
    for part in [*model.blocks, model]:
        fully_shard(part, mesh=mesh)
    return count(model, SGD(model.parameters(), 0.1), True)


def layers() -> int:
    model = parallelize_module(Net(), init_device_mesh("cpu", (dist.get_world_size(),)), BY_TORCH)
    return count(model, SGD(model.parameters(), 0.1), False)


def in_session(**options: Any) -> int:
    with session(accelerator="cpu", **options):
        torch.manual_seed(0)
        model = Net()
        return count(model, SGD(model.parameters(), 0.1), False)


WAYS: dict[str, tuple[Loop, dict[str, Any]]] = {
    "ddp": (wrapped, {"strategy": "ddp"}),
    "ddp_sharded": (zero, {"strategy": "ddp_sharded"}),
    "fsdp": (partial(sharded, None), {"strategy": "fsdp", "auto_wrap_policy": (nn.Sequential,)}),
    "fsdp x tp": (partial(sharded, 2), {"strategy": "fsdp", "tp": 2, "plan": PLAN}),
    "tp": (layers, {"strategy": "tp", "plan": PLAN}),
}


def rank(number: int, port: int, ranks: int, names: list[str]) -> None:
    warnings.simplefilter("ignore")
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(ranks)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ways = {name: WAYS[name] for name in names}
    found = {name: (by_hand(), in_session(**options)) for name, (by_hand, options) in ways.items()}
    if number == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
ranks, *names = sys.argv[1:]
start_processes(rank, (port, int(ranks), names), int(ranks), start_method="fork")
