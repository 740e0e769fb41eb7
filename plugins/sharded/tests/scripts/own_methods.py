import json
import sys

import torch
from own_methods_head import train
from torchbus import session

RANKS = int(sys.argv[1])
alone, lone = train(6)
lone.zero_grad()
lone.step()
with session(strategy="ddp_sharded", devices=RANKS, accelerator="cpu", launch="fork") as s:
    ours, optimizer = train(6 // RANKS)
    same = all(torch.equal(ours, other) for other in s.all_gather(ours))
    kept = sum("mean" in state for state in optimizer.state.values())
    optimizer.zero_grad()
    optimizer.step()
    kept_later = s.all_gather_object(sum(bool(state) for state in optimizer.state.values()))
state = all(
    torch.allclose(optimizer.state[a]["mean"], lone.state[b]["mean"])
    for a, b in zip(optimizer.state, lone.state, strict=True)
)
methods = [name for name in vars(optimizer) if callable(vars(optimizer)[name])]
print(json.dumps([float((ours - alone).abs().max()), same, kept, sum(kept_later), state, methods]))
