"""States that were saved at stage A with 2 ranks, loaded at B."""

import json
import sys

import torch
from deepspeed_head import DATA, adamw, difference, flat, net, of_states, opened
from torch.nn import functional as F

first, second, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
x, y = DATA.tensors
x, y = x[:36], y[:36]


def steps(model, optimizer, mine):
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(x[mine]), y[mine]).backward()
        optimizer.step()


def made():
    torch.manual_seed(1)
    model = net()
    return model, adamw(model)


def share(s):
    each = 36 // s.world_size
    return slice(each * s.rank, each * (s.rank + 1))


whole, theirs = made()
steps(whole, theirs, slice(None))
steps(whole, theirs, slice(None))
with opened(first, 2, replace_sampler=False) as s:
    model, optimizer = made()
    steps(model, optimizer, share(s))
    states = model.state_dict(), optimizer.state_dict()
    if s.is_main:
        torch.save(states, "states.pt")
with opened(second, ranks, replace_sampler=False) as s:
    model, optimizer = made()
    for thing, state in zip((model, optimizer), torch.load("states.pt"), strict=True):
        thing.load_state_dict(state)
    steps(model, optimizer, share(s))
print(json.dumps([difference(flat(whole), flat(model)), of_states(theirs, optimizer)]))
