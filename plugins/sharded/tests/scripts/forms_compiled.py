import json

import torch
from forms_head import DATA, RANKS, Blocks, apart, called, check, found
from torch.utils.data import DataLoader
from torchbus import session

check("after the optimizer", called, lambda net: torch.compile(net, backend="eager"))
check("in place", called, lambda net: net.compile(backend="eager"))


def train_shell(batch_size):
    torch.manual_seed(0)
    net = Blocks()
    shell = torch.compile(net, backend="eager")
    optimizer = torch.optim.Adam(shell.parameters(), lr=0.1)
    for x in DataLoader(DATA, batch_size=batch_size):
        optimizer.zero_grad()
        shell(x).square().mean().backward()
        optimizer.step()
    return {name: value.clone() for name, value in net.state_dict().items()}


alone = train_shell(6)
with session(strategy="fsdp", devices=RANKS, accelerator="cpu", launch="fork"):
    ours = train_shell(6 // RANKS)
found["before the optimizer"] = apart(ours, alone)
print(json.dumps(found))
