"""States on all ranks, loading, and checkpoints that other numbers of ranks and ddp go on from."""

import json
import sys
from pathlib import Path

import torch
from tensor_head import PLAN, Mlp, alike, differ, loss_of, numbers, session, state
from torch.utils.data import DataLoader

folder = Path(sys.argv[1])
found = {}


def run(epochs, batch, s=None, path=None, stop=None):
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(numbers(24), batch, shuffle=True)
    if path and not stop:
        s.load(path)
    step = 0
    for _ in range(epochs) if s is None else s.epochs(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            step += 1
            if step == stop:
                return s.save(path)
    return model, optimizer


def opened(ranks, strategy="tp", **options):
    words = {"plan": PLAN, **options} if strategy == "tp" or options else {}
    return session(strategy=strategy, devices=ranks, accelerator="cpu", launch="fork", **words)


def whole_states(s, whole, entries):
    model, optimizer = run(2, 8 // s.world.data.parts)
    ours = state(model)
    found["model"] = [differ(ours, whole), alike(s, ours)]
    kept, kept_entries = state(model), optimizer.state_dict()
    found["optimizer"] = max(differ(kept_entries["state"][k], entries[k]) for k in entries)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    model.load_state_dict(kept)
    optimizer.load_state_dict(kept_entries)
    found["loaded"] = differ(state(model), kept)
    average = optimizer.state[model.blocks[0].up.weight]["exp_avg"]
    found["part of the state"] = average.to_local().numel() / average.numel()


def of_one_process():
    model, optimizer = run(2, 8)
    return state(model), optimizer.state_dict()["state"]


whole, entries = of_one_process()
two_by_two = {"ranks": 4, "tp": 2, "strategy": sys.argv[2]}
with opened(**({"ranks": 2} if sys.argv[2] == "tp" else two_by_two)) as s:
    whole_states(s, whole, entries)
for name, first, second, batch in (
    ("2 to 3", {"ranks": 2}, {"ranks": 3}, 8),
    ("2x2 to ddp", two_by_two, {"ranks": 2, "strategy": "ddp"}, 4),
    ("ddp to 2x2", {"ranks": 2, "strategy": "ddp"}, two_by_two, 4),
):
    with opened(**first) as s:
        run(2, batch, s, folder / name, stop=4)
    with opened(**second) as s:
        found[name] = differ(state(run(2, batch, s, folder / name)[0]), whole)
print(json.dumps(found))
