"""Loops that evaluate at several places. Prints what each checkpoint has: its step, and whether its
weights are those that had the value in it (None without a value).

Argument: a list of (loop, ranks, every_n_steps, the step to resume from) in JSON.
"""

import gc
import json
import os
import shutil
import sys

import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

gc.freeze()
DATA = torch.randn(24, 2, generator=torch.Generator().manual_seed(1))


class Training:
    """A model, its loaders, and the weights that each value was logged for."""

    def __init__(self, s):
        torch.manual_seed(0)
        self.s = s
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.loader = DataLoader(TensorDataset(DATA), batch_size=4, shuffle=True)
        self.held_out = DataLoader(TensorDataset(DATA), batch_size=8, shuffle=True)
        self.judged, self.steps = {}, 0

    def step(self, x):
        self.model.train()
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        self.optimizer.step()
        self.steps += 1

    def evaluate(self):
        with torch.no_grad():
            losses = [self.loss(x) for (x,) in self.held_out]
        self.log(sum(losses) / max(1, len(losses)))

    def loss(self, x):
        self.model.eval()
        loss = self.model(x).square().mean().item()
        self.model.train()
        return loss

    def log(self, value, **how):
        self.judged[value] = [p.tolist() for p in self.model.state_dict().values()]
        self.s.log("val_loss", value, **how)


def after_each_epoch(t):
    for epoch in range(3):
        for (x,) in t.loader:
            t.step(x)
        t.evaluate()


def after_a_pass_that_it_leaves(t):
    for epoch in range(3):
        for (x,) in t.loader:
            t.step(x)
            if t.steps % 4 == 0:
                with torch.no_grad():
                    for i, (y,) in enumerate(t.held_out):
                        if i == 1:
                            break
                        t.log(t.loss(y), on_epoch=True)


def after_some_steps(t):
    for epoch in range(3):
        for (x,) in t.loader:
            t.step(x)
            if t.steps % 4 == 0:
                t.evaluate()


def before_some_steps(t):
    for epoch in range(3):
        for (x,) in t.loader:
            if t.steps % 4 == 0:
                t.evaluate()
            t.step(x)


def before_each_epoch(t):
    for epoch in t.s.epochs(3):
        t.evaluate()
        for (x,) in t.loader:
            t.step(x)


def before_some_steps_without_a_loader(t):
    for step in t.s.epochs(18):
        if step % 4 == 0:
            t.evaluate()
        t.step(DATA[torch.randint(24, (4,))])


def run(form, ranks, folder, **options):
    """Return the judged weights by value, and the weights at the end."""
    given = {"batch": "global", "monitor": "val_loss", "keep": None, **options}
    with session(devices=ranks, launch="fork", accelerator="cpu", checkpoint=folder, **given) as s:
        t = Training(s)
        form(t)
    return t.judged, [p.tolist() for p in t.model.state_dict().values()]


def held(folder, judged):
    """Return (step, whether the value is of these weights) of each checkpoint."""
    found = []
    for name in sorted(name for name in os.listdir(folder) if name.startswith("step-")):
        with open(f"{folder}/{name}/manifest.json") as file:
            facts = json.load(file)
        weights = [p.tolist() for p in load_file(f"{folder}/{name}/model.safetensors").values()]
        value = facts["metric"]
        alike = sorted(map(str, weights)) == sorted(map(str, judged.get(value, [])))
        found.append([facts["step"], None if value is None else alike])
    return found


def main(name, ranks, every, at):
    """Print what a run has, and whether one that resumes from step ``at`` ends alike."""
    options = {} if every is None else {"every_n_steps": every}
    judged, weights = run(globals()[name], ranks, "first", **options)
    found = held("first", judged)
    shutil.copytree(f"first/step-{at:08d}", f"again/step-{at:08d}")
    judged, end = run(globals()[name], ranks, "again", **options)
    later = [one[0] for one in held("again", judged) if one[0] >= at]
    print(
        json.dumps([found, end == weights and later == [one[0] for one in found if one[0] >= at]])
    )


if __name__ == "__main__":
    for case in json.loads(sys.argv[1]):
        main(*case)
        shutil.rmtree("first")
        shutil.rmtree("again")
