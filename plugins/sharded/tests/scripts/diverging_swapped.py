import sys

import torch
from torchbus import session

held, loss_of = sys.argv[1:]
with session(strategy="fsdp", devices=2, accelerator="cpu", launch="fork", hang_timeout=5.0) as s:
    net, scale = torch.nn.Linear(2, 1), torch.ones((), requires_grad=True)
    optimizer = torch.optim.SGD([*net.parameters(), *([scale] if held else [])], 0.1)
    for number in range(5):
        (net(torch.ones(2, 2)) * scale).mean().backward()
    if s.rank == 0:
        s.reduce(torch.tensor(5.0))
    loss = eval(loss_of)
    loss.backward()
    if s.rank == 1:
        s.reduce(torch.tensor(5.0))
    print("went on")
