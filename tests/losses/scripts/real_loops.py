"""Loops in the shapes of public repositories: on N ranks, against one plain process.

Called with a JSON dict: strategy, devices, accumulate, batch, loops (names; all), but, samples.
Each loop runs in a session of its own. Prints for each how far parameters and printed numbers are
apart, how far the ranks are, and what was said; or the error.
"""

import json
import os
import pickle
import sys
import tempfile
import warnings

import real.data
import real.generative
import real.language
import real.losses
import real.steps  # noqa: F401
import torch
from real.table import LOOPS
from torch.utils.data import DataLoader
from torchbus import session

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
asked = json.loads(sys.argv[1])
RANKS, ACCUMULATE = asked["devices"], asked.get("accumulate", 1)
WHOLE, SAMPLES = asked.get("batch") == "global", asked.get("samples", 61)
BATCH = 6 if WHOLE else 4
PLAIN = BATCH * ACCUMULATE * (1 if WHOLE else RANKS)
FOLDER = tempfile.mkdtemp()


class Run:
    """What a loop needs. ``scale``: so many of the session's batches make one of this run's."""

    def __init__(self, batch):
        torch.manual_seed(0)
        self.batch, self.scale, self.size, self.whole = batch, batch // BATCH, SAMPLES, PLAIN
        self.logged = []

    def loader(self, data, **options):
        return DataLoader(data, batch_size=self.batch, **options)

    def plain_loader(self, data, **options):
        return DataLoader(data, **options)

    def log(self, value):
        self.logged.append(float(value.detach()))


def values(models):
    tensors = [value for model in models for value in model.state_dict().values()]
    return torch.cat([value.detach().double().reshape(-1) for value in tensors])


def train(name, batch):
    run = Run(batch)
    return values(LOOPS[name](run)), torch.tensor(run.logged)


def ranks(name):
    """This rank's values and printed numbers, the other ranks' values, and what was said."""
    options = {"accumulate_grad_batches": ACCUMULATE} if ACCUMULATE > 1 else {}
    options |= {"batch": "global"} if WHOLE else {}
    how = {"strategy": asked["strategy"], "devices": RANKS, "accelerator": "cpu", "launch": "fork"}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with session(**how, **options) as s:
            own, logged = train(name, BATCH)
            file = os.open(f"{FOLDER}/{name}{s.rank}", os.O_CREAT | os.O_WRONLY)
            os.write(file, pickle.dumps(own.tolist()))
            os.close(file)
    others = []
    for rank in range(RANKS):
        with open(f"{FOLDER}/{name}{rank}", "rb") as file:
            others.append(torch.tensor(pickle.load(file)))
    return own, logged, others, [str(one.message) for one in said]


def compare(name):
    alone, printed = train(name, PLAIN)
    try:
        own, logged, others, said = ranks(name)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    alike = ACCUMULATE == 1 and len(logged) == len(printed) > 0
    losses = (logged - printed).abs().max().item() if alike else 0.0
    between = max((own - other).abs().max().item() for other in others)
    return [(own - alone).abs().max().item(), losses, between, said]


for name in asked.get("loops") or LOOPS:
    if name not in asked.get("but", []):
        print(json.dumps([name, compare(name)]), flush=True)
