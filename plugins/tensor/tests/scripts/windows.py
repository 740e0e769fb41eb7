"""Windows and clipping by plugins, and logged values, over 2 x 2 ranks."""

import json
import sys
from contextlib import nullcontext

import torch
from tensor_head import PLAN, Mlp, differ, loss_of, make_optimizer, numbers, opened, state, train
from torch.utils.data import DataLoader

from torchbus_testing.recorder import RecordingLogger

found = {}


options = {"plan": PLAN, "tp": 2, "strategy": sys.argv[1]}
alone, _, _ = train(Mlp, numbers(24), 8, clip=None)
with opened(4, **options, accumulate_grad_batches=2) as s:
    model, _, _ = train(Mlp, numbers(24), 2, clip=None)
    found["accumulate_grad_batches"] = differ(state(model), state(alone))

alone, _, _ = train(Mlp, numbers(), 8)
with opened(4, **options, gradient_clip_val=0.5) as s:
    model, _, _ = train(Mlp, numbers(), 4, clip=None)
    found["gradient_clip_val"] = differ(state(model), state(alone))

alone, _, _ = train(Mlp, numbers(24), 8, every=2)
with opened(4, **options) as s:
    model, _, _ = train(Mlp, numbers(24), 4, every=2)
    found["own window"] = differ(state(model), state(alone))

alone, _, _ = train(Mlp, numbers(24), 24, clip=None, epochs=1)
with opened(4, **options) as s:
    torch.manual_seed(0)
    model = Mlp()
    optimizer = make_optimizer(model, "adamw")
    loader = list(DataLoader(numbers(24), 4, shuffle=True))
    for number, (x, y) in enumerate(loader):
        with s.no_sync() if number + 1 < len(loader) else nullcontext():
            (loss_of(model, x, y) / len(loader)).backward()
    optimizer.step()
    found["no_sync"] = differ(state(model), state(alone))

logger = RecordingLogger()
data = numbers()
with opened(4, logger=logger, **options) as s:
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for x, y in DataLoader(data, 4):
        per_sample = (model(x) - y).square().mean(1)
        s.log("mean", per_sample.detach().mean(), on_epoch=True, on_step=False)
        s.log("sum", per_sample.detach().sum(), reduce="sum", on_epoch=True, on_step=False)
        per_sample.mean().backward()
        optimizer.step()
found["logged"] = {k: v for line in logger.lines for k, v in line[2].items()}
torch.manual_seed(0)
model = Mlp()
x, y = data.tensors
per_sample = (model(x) - y).square().mean(1).detach()
found["expected"] = [float(per_sample.mean()), float(per_sample.sum())]
print(json.dumps(found))
