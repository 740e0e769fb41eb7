"""Waits of the host in each step of a loop on the simulated accelerator: one line a step.

The arguments are JSON: options of the session, and how the loop itself is.
"""

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

import torchbus_simulator as accelerator
from torchbus_testing.recorder import RecordingLogger

STEPS = 24
BATCH = 8


def loop(device, batch, reads=False, s=None):
    torch.manual_seed(0)
    x, y = torch.randn(STEPS * BATCH * 2, 6), torch.randint(0, 3, (STEPS * BATCH * 2,))
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch, shuffle=True, pin_memory=device != "cpu")
    steps, batches = [], iter(loader)
    for _ in range(STEPS):
        with accelerator.host_waits() as waits:
            inputs, targets = next(batches)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            if s is not None and "log" in plugins:
                s.log("loss", loss)
            if reads:
                loss.item()
        steps.append([str(wait) for wait in waits])
    values = torch.cat([value.detach().cpu().flatten() for value in model.state_dict().values()])
    return steps, values


accelerator.load(devices=2)
options = json.loads(sys.argv[1])
reads, plugins = options.pop("reads", False), options.pop("plugins", [])
if "log" in plugins:
    options |= {"logger": RecordingLogger(), "log_every_n_steps": 1000}
with session(
    *plugins, strategy=options.pop("strategy", "ddp"), devices=2, launch="fork", **options
) as s:
    steps, values = loop("sim", BATCH, reads, s)
    every = s.all_gather(values.to("sim"))
    s.print(json.dumps(steps))
    s.print(torch.equal(*every))
if s.is_main:
    _, alone = loop("cpu", 2 * BATCH)
    print(float((alone - values).abs().max()))
