import json

import torch
from divided_checkpoints_head import found
from torch import nn
from torch.distributed.tensor import DTensor
from torchbus import session

gather, count = DTensor.full_tensor, []
DTensor.full_tensor = lambda self, **options: count.append(self) or gather(self, **options)


def gathered(act):
    count.clear()
    act()
    return len(count)


for name, in_parts in {"whole": False, "in parts": True}.items():
    with session(
        strategy="fsdp", devices=2, accelerator="cpu", launch="fork", sharded_save=in_parts
    ) as s:
        model = nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 1))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 3)).mean().backward()
        optimizer.step()
        parts = [
            value.to_local().clone()
            for value in [
                *model.parameters(),
                *(entry["exp_avg"] for entry in optimizer.state.values()),
            ]
        ]
        mine = [gathered(lambda: s.save(name)), gathered(lambda: s.load(name))]
        again = [
            value.to_local()
            for value in [
                *model.parameters(),
                *(entry["exp_avg"] for entry in optimizer.state.values()),
            ]
        ]
        same = all(map(torch.equal, parts, again)) and len(parts) == 8
        found[name] = s.all_gather_object([*mine, same])
print(json.dumps(found))
