import json
import sys

import torch
from meta_head import alone, apart, found, made, numbers, opened, part, steps
from torch import nn

RANKS = json.loads(sys.argv[1])
model = alone()
first, drawn_next = numbers(model), torch.rand(3)
trained = steps(model, torch.optim.Adam(model.parameters(), lr=0.1))
del model
for ranks in RANKS:
    with opened(ranks) as s:
        model, optimizer = made()
        model.eval()
        found[f"first {ranks}"] = [numbers(model).equal(first), torch.rand(3).equal(drawn_next)]
        held = {id(one) for group in optimizer.param_groups for one in group["params"]}
        found[f"held {ranks}"] = (
            held == {id(one) for one in model.parameters()}
            and model.out.weight is model.embed.weight
        )
        found[f"kept {ranks}"] = [
            one.to_local().untyped_storage().nbytes() / (one.numel() * 8)
            for one in model.parameters()
            if ranks > 1
        ]
        trained_here = steps(model, optimizer, part(s))
        found[f"trained {ranks}"] = [
            apart(numbers, trained) for numbers in s.all_gather(trained_here)
        ]
        with torch.device("meta"):
            pair = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        halves = [
            torch.optim.SGD(half, lr=0.1) for half in [list(one.parameters()) for one in pair]
        ]
        held = [id(one) for half in halves for one in half.param_groups[0]["params"]]
        found[f"lists made before {ranks}"] = held == [id(one) for one in pair.parameters()]
print(json.dumps(found))
