import copy
import json
import sys

import torch
from sharded_head import Mlp, found, opened, part, steps
from torch import nn

STRATEGY = sys.argv[1]
torch.manual_seed(0)
model, alone = Mlp(), Mlp()
alone.load_state_dict(model.state_dict())
optimizer, lone = (
    torch.optim.AdamW(model.parameters(), lr=1e-2),
    torch.optim.AdamW(alone.parameters(), lr=1e-2),
)
steps(model, optimizer, slice(None)), steps(alone, lone, slice(None))  # states before the block
steps(alone, lone, slice(None))
names = list(alone.state_dict())
with opened(STRATEGY) as s:
    steps(model, optimizer, part(s))
    state = model.state_dict()
    found["before"] = max(float((state[n] - alone.state_dict()[n]).abs().max()) for n in names)
    found["plain tensors"] = (
        all(type(v) is torch.Tensor for v in state.values()) and list(state) == names
    )
    saved = {n: v.clone() for n, v in state.items()}
    steps(model, optimizer, part(s))
    model.load_state_dict(saved)
    found["loaded"] = all(v.equal(saved[n]) for n, v in model.state_dict().items())
    whole = sum(p.numel() for p in alone.parameters())
    own = sum(
        v.to_local().numel() if hasattr(v, "to_local") else v.numel()
        for s_ in optimizer.state.values()
        for k, v in s_.items()
        if k != "step"
    )
    kept = [
        p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad for p in model.parameters()
    ]
    memory = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in kept}
    found["part of the gradients"] = sum(memory.values()) / (8 * whole)
    found["part of the state"] = own / (2 * whole)
    if STRATEGY == "ddp_sharded":
        entire = optimizer.state_dict()["state"]
        found["whole state"] = len(entire) == len(names) and not any(
            v.is_meta for e in entire.values() for v in e.values()
        )
    try:
        copy.deepcopy(model)
        found["deepcopy"] = "copied"
    except Exception as error:
        found["deepcopy"] = str(error)
    found["explain"] = s.explain()
    last = {n: v.clone() for n, v in model.state_dict().items()}
found["state after"] = len(optimizer.state)
found["whole after"] = [
    type(model) is Mlp,
    all(type(p) is nn.Parameter and p.equal(last[n]) for n, p in model.named_parameters()),
    all(
        v.shape in (p.shape, ()) and type(v) is torch.Tensor
        for p in model.parameters()
        for v in optimizer.state[p].values()
    ),
    copy.deepcopy(model) is not model,
]
with opened(STRATEGY) as s:
    steps(model, optimizer, part(s))
print(json.dumps(found))
