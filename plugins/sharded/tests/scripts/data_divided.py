import ast
import json
import sys

import torch
from torch.utils.data import DataLoader
from torchbus import session

found, OPTIONS = {}, ast.literal_eval(sys.argv[1])


def sizes(model, loader, optimizer=None):
    taken = []
    for x in loader:
        taken.append(len(x))
        if optimizer is not None:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
    return taken


def train(s):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    seen = [sizes(model, DataLoader(DATA, batch_size=4), optimizer)]
    model.eval()
    seen.append(sizes(model, DataLoader(DATA[:8], batch_size=4)))
    model.train()
    _scale = torch.optim.SGD(
        [torch.nn.Parameter(torch.ones(1))], lr=0.1
    )  # another optimizer, while the model is gathered
    model(DATA).mean()
    seen.append(sizes(model, DataLoader(DATA, batch_size=4), optimizer))
    return s.all_gather_object(seen)


DATA = torch.arange(24.0)[:, None]
for case in ("alone", "a teacher in eval mode", "one with an optimizer", "one in training mode"):
    other = None if case == "alone" else torch.nn.Linear(2, 2).train(case == "one in training mode")
    its_optimizer = torch.optim.SGD(other.parameters(), lr=0.1) if "optimizer" in case else None
    with session(devices=2, accelerator="cpu", launch="fork", **OPTIONS) as s:
        found[case] = train(s)
print(json.dumps(found))
