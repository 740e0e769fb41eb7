"""A loop that adds up its losses on the device, killed after some steps or not at all."""

import os
import signal
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

import torchbus_simulator as accelerator

dies, by = int(sys.argv[1]), sys.argv[2]
accelerator.load(devices=1)
x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8, shuffle=True)
with session(accelerator="sim", seed=1, checkpoint="kept", every_n_steps=3) as s:
    model = nn.Linear(4, 2).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    best, means, steps = torch.tensor(1e9, device="sim"), [], 0
    for _ in s.epochs(4) if by == "epochs" else range(4):
        total = count = 0
        for a, b in loader:
            loss = nn.functional.cross_entropy(model(a.to("sim")), b.to("sim"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            count += 1
            steps += 1
            if steps == dies:
                os.kill(os.getpid(), signal.SIGKILL)
        best = torch.minimum(best, total / count)
        means.append(total / count)
    print(best.device, torch.stack(means).tolist(), [one.tolist() for one in model.parameters()])
