"""Noise of the device's own generator, in a loop that is cut, and resumes.

The arguments: a folder, the number of steps before the cut, and options of the session as JSON.
"""

import hashlib
import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

import torchbus_simulator as accelerator

accelerator.load(devices=2)
folder, cut, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
with session(checkpoint=folder, every_n_steps=1, devices=2, launch="fork", **options) as s:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    data = TensorDataset(torch.randn(24, 3, generator=torch.Generator().manual_seed(7)))
    loader, steps = DataLoader(data, 4, shuffle=True), 0
    for _ in s.epochs(2):
        for (x,) in loader:
            optimizer.zero_grad()
            noise = torch.randn(x.shape, device=x.device)
            model(x + 0.1 * noise).square().mean().backward()
            optimizer.step()
            steps += 1
            if steps == cut:
                sys.exit(3)
    values = torch.cat([value.detach().flatten() for value in model.state_dict().values()]).cpu()
    states = [value for state in optimizer.state.values() for value in state.values()]
    s.print(steps, [str(value.device) for value in states[1:3]], x.device)
    s.print(hashlib.sha256(values.numpy().tobytes()).hexdigest())
