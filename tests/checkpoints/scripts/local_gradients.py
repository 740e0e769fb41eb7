"""A checkpoint where gradients of all ranks and of one rank wait for the same step."""

import torch
from torch import nn
from torchbus import session
from torchbus.errors import Unsupported

with session(
    "checkpoint", "accumulate", strategy="deepspeed_stage_1", devices=2, launch="fork",
    accelerator="cpu",
) as s:  # fmt: skip
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(3, 4)).mean().backward()
    with s.no_sync():
        model(torch.ones(3, 4)).mean().backward()
    try:
        s.save("here")
    except Unsupported as error:
        print(error)
    optimizer.step()
    optimizer.zero_grad()
    s.save("here")
    print("saved")
