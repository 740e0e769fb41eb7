"""``python windows_of_ranks.py RANKS CASES``: the gradient of every real step, for each case (one
epoch with its own window).
"""

from __future__ import annotations

import json
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

RANKS, CASES = int(sys.argv[1]), json.loads(sys.argv[2])
WAY = {"strategy": "ddp", "devices": RANKS, "launch": "fork"} if RANKS > 1 else {}


def train(s, net, optimizer, case):
    for x, y, count in DataLoader(
        TensorDataset(*map(torch.tensor, case["data"])), batch_size=case["batch"]
    ):
        optimizer.zero_grad()
        losses = (net(x).squeeze(1) - y).square()
        if case["counted"]:
            s.backward_weight(count.sum().item())
            loss = (losses * count).sum() / count.sum().clamp(min=1)
        else:
            loss = losses.mean()
        loss.backward()
        optimizer.step()


torch.set_default_dtype(torch.float64)
with session(
    **WAY, accumulate_grad_batches={epoch: case["window"] for epoch, case in enumerate(CASES)}
) as s:
    net = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(net.weight, 0.5)
    torch.nn.init.constant_(net.bias, 0.25)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    gradients = [[] for _ in CASES]
    for case, found in zip(CASES, gradients, strict=True):
        note = optimizer.register_step_pre_hook(
            lambda *_, found=found: found.append(
                [*net.weight.grad[0].tolist(), net.bias.grad.item()]
            )
        )
        train(s, net, optimizer, case)
        note.remove()
print(json.dumps(gradients))
