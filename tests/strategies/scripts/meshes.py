"""The mesh of each strategy, and what a rank finds along its dimensions."""

import json

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import distribute_tensor
from torchbus import session

found = {}
CASES = {
    "ddp": {"devices": 2},
    "ddp_sharded": {"devices": 2},
    "fsdp": {"devices": 2},
    "hybrid": {"strategy": "fsdp", "devices": 2, "hybrid": True},
    "dp": {"devices": 2},
    "ddp2": {"devices": 2},
    "tp": {"devices": 4, "tp": 2, "plan": {"0": "colwise"}},
    "pipeline": {"devices": 4, "stages": 2},
}


def told(s):
    """Sizes, this rank's coordinates and data, and the ranks that each dimension joins."""
    mesh = s.world.mesh
    joined = {
        name: dist.get_process_group_ranks(mesh.get_group(name)) for name in mesh.mesh_dim_names
    }
    sums = {}
    for name in mesh.mesh_dim_names:
        number = torch.tensor(s.rank)
        dist.all_reduce(number, group=mesh.get_group(name))
        sums[name] = int(number) == sum(joined[name])
    whole = torch.arange(8.0)
    first = mesh[mesh.mesh_dim_names[-1]]
    gathered = distribute_tensor(whole, first, src_data_rank=None).full_tensor()
    data = [*s.world.data, s.world.member]
    place = dict(zip(mesh.mesh_dim_names, mesh.get_coordinate(), strict=True))
    sizes = dict(zip(mesh.mesh_dim_names, mesh.mesh.shape, strict=True))
    return [
        sizes,
        place,
        joined,
        data,
        all(sums.values()) and mesh is s.world.mesh,
        gathered.equal(whole),
    ]


for name, options in CASES.items():
    words = {"strategy": name, "accelerator": "cpu", "launch": "fork"} | options
    with session(**words) as s:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        torch.optim.SGD(model.parameters())
        if name in ("tp", "fsdp"):
            model(torch.ones(2, 4)).sum().backward()
        mine = told(s)
        found[name] = s.all_gather_object(mine)
        line = next(one for one in s.explain().splitlines() if one.startswith("ranks"))
        found[f"{name} explained"] = line
try:
    print(s.world.mesh)
except Exception as error:
    found["after"] = str(error)
with session() as s:
    try:
        print(s.world.mesh)
    except Exception as error:
        found["one rank"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
