"""Copies of a model in the middle of a run, within a session, against one process."""

import copy
import json

import torch
from tensor_head import PLAN, F, Mlp, differ, numbers, opened, state
from torch.utils.data import DataLoader


def copies():
    """A copy in the middle of a run, which is asked, and one that goes on by itself."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = list(DataLoader(numbers(20), 8))
    for x, y in batches:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    teacher, pupil = copy.deepcopy(model), copy.deepcopy(model)
    second = torch.optim.SGD(pupil.parameters(), lr=0.1)
    for x, _ in batches:
        second.zero_grad()
        F.mse_loss(pupil(x), teacher(x * 0.5).detach()).backward()
        second.step()
    return model, teacher, pupil


found = {}
alone = copies()
with opened(2, plan=PLAN):
    ours = copies()
    within = [state(model) for model in ours]
    _, teacher, pupil = ours
    found["teacher is whole"] = type(teacher.blocks[0].up.weight) is torch.nn.Parameter
    found["part of the pupil"] = pupil.blocks[0].up.weight.to_local().shape[0]
for name, model, mine, theirs in zip(
    ("model", "teacher", "pupil"), ours, within, alone, strict=True
):
    found[name] = max(differ(mine, state(theirs)), differ(state(model), state(theirs)))
    found[f"{name} plain"] = all(type(p) is torch.nn.Parameter for p in model.parameters())
    hooks = [m for m in model.modules() if m._forward_hooks or "__deepcopy__" in vars(m)]
    found[f"{name} clean"] = not hooks

print(json.dumps(found))
