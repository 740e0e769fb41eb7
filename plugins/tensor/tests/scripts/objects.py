"""Torch's own styles, float32, frozen parameters, and numbers that the loop reads."""

import json

import torch
from tensor_head import PLAN, Mlp, differ, numbers, opened, state, train
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

found = {}
alone, _, _ = train(Mlp, numbers(), 8, "sgd")
objects = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
with opened(2, plan=objects) as s:
    model, _, _ = train(Mlp, numbers(), 8, "sgd")
    found["objects"] = differ(state(model), state(alone))

torch.manual_seed(0)
whole = Mlp()
x, y = numbers(8).tensors
(whole(x) - y).square().mean().backward()
with opened(2, plan=PLAN) as s:
    torch.manual_seed(0)
    model = Mlp()
    model.blocks[1].up.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(x) - y).square().mean().backward()
    found["frozen"] = model.blocks[1].up.weight.grad is None
    norm = model.blocks[0].up.weight.grad.norm().item()
    found["item"] = abs(norm - whole.blocks[0].up.weight.grad.norm().item())

torch.set_default_dtype(torch.float32)
data = torch.utils.data.TensorDataset(*(one.float() for one in numbers().tensors))
alone, _, _ = train(Mlp, data, 8, "sgd")
with opened(2, plan=PLAN) as s:
    model, _, _ = train(Mlp, data, 8, "sgd")
    found["float32"] = differ(state(model), state(alone))
print(json.dumps(found))
