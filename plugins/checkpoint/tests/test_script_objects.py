"""Variables and objects of a script, in the forms that scripts have, continue after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)

SCRIPT = """
import itertools, logging, os, random, signal, sys
from collections import Counter, defaultdict, deque, namedtuple

import numpy, torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

kind, die, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
Row = namedtuple("Row", "epoch loss")

class Meter:
    def __init__(self):
        self.values = []

class History(dict):
    def log(self, name, value):
        self.setdefault(name, []).append(value)

class Trainer:
    def __init__(self):
        self.meter = Meter()

def train(s):
    torch.manual_seed(0)
    x = torch.randn(24, 3)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6, shuffle=True)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    by_name, last, counts = defaultdict(list), deque(maxlen=6), Counter()
    nested = defaultdict(lambda: defaultdict(list))
    meters, trainer = {"loss": Meter()}, Trainer()
    numbers, rng, generator = itertools.count(1), random.Random(3), numpy.random.default_rng(5)
    steps, rows, history, best, waited = 0, [], History(), None, 0
    for epoch in s.epochs(3) if kind == "epochs" else range(3):
        for a, b in loader:
            optimizer.zero_grad()
            loss = (model(a) - b).square().mean()
            loss.backward()
            optimizer.step()
            steps += 1
            drawn = rng.random(), generator.random(), next(numbers)
            value = round(loss.item(), 6)
            by_name["loss"].append(value)
            last.append(value)
            counts["steps"] += 1
            nested[epoch]["loss"].append(value)
            meters["loss"].values.append(value)
            trainer.meter.values.append(value)
            if die == steps:
                os.kill(os.getpid(), signal.SIGKILL)
        rows.append(Row(epoch, value))
        with torch.no_grad():
            history.log("samples", sum(len(a) for a, b in loader))
        history.log("loss", value)
        best, waited = (value, 0) if best is None or value < best else (best, waited + 1)
        logging.warning("logged %d", epoch)
        print(epoch, drawn, rng.random(), generator.random())
    print([by_name, last, counts, dict(nested), meters["loss"].values, trainer.meter.values])
    print(rows, [row.loss for row in rows], history, best, waited)

options = {"devices": ranks, "batch": "global", "accelerator": "cpu"}
with session(checkpoint="kept", every_n_steps=4 if die == 9 else 5, **options) as s:
    train(s)
"""
FOLDS = """
import os, signal, sys

import torch
from torch.utils.data import DataLoader
from torchbus import session

die = int(sys.argv[1])

def train():
    torch.manual_seed(0)
    steps, results = 0, []
    for fold in range(3):
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for epoch in range(2):
            for x in DataLoader(torch.randn(12, 3), batch_size=6):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                steps += 1
                if die == steps:
                    os.kill(os.getpid(), signal.SIGKILL)
        results.append(model.weight.sum().item())
    print(results[-1], steps)

with session(checkpoint="kept", every_n_steps=1):
    train()
"""


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["range", "epochs"])
@pytest.mark.parametrize("die", [7, 9])
def test_collections_generators_and_objects_in_objects(
    run: Any, tmp_path: Path, kind: str, die: int, ranks: int
) -> None:
    """A defaultdict, a deque, a Counter, a list of namedtuples; objects in a dict, and in an
    attribute of another; counters and generators, from which ranks draw apart in a pass.
    """
    whole = run(SCRIPT, kind, -1, ranks, folder=tmp_path / "whole").ok().stdout
    killed = run(SCRIPT, kind, die, ranks, folder=tmp_path / "killed")
    assert killed.status != 0
    result = run(SCRIPT, kind, -1, ranks, folder=tmp_path / "killed").ok()
    assert "logged 2" in result.stderr and "logged 0" not in result.stderr
    resumed = result.stdout
    printed = killed.stdout.splitlines()
    again = resumed.splitlines()
    assert [*printed[: len(whole.splitlines()) - len(again)], *again] == whole.splitlines()


@pytest.mark.parametrize("die", [5, 7, 10])
def test_a_model_for_each_fold(run: Any, tmp_path: Path, die: int) -> None:
    """A checkpoint has the model of its fold only, not the model of the fold before."""
    whole = run(FOLDS, -1, folder=tmp_path / "whole").ok().stdout
    assert run(FOLDS, die, folder=tmp_path / "killed").status != 0
    assert run(FOLDS, -1, folder=tmp_path / "killed").ok().stdout == whole


OWN = """
import os, signal, sys

import torch
from torch.utils.data import DataLoader
from torchbus import session

die, resumes = int(sys.argv[1]), sys.argv[2] == "resumes"

def train():
    torch.manual_seed(0)
    loader = DataLoader(torch.randn(12, 3), batch_size=6, shuffle=True)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    first, steps = 0, 0
    if resumes and os.path.exists("last.pt"):
        saved = torch.load("last.pt")
        model.load_state_dict(saved["model"])
        first = saved["epoch"] + 1
    for epoch in range(first, 3):
        for x in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            steps += 1
            if die == steps:
                os.kill(os.getpid(), signal.SIGKILL)
        torch.save({"epoch": epoch, "model": model.state_dict()}, "last.pt")
    print(steps, model.weight.sum().item())

with session(checkpoint="kept", every_n_steps=1):
    train()
"""


@pytest.mark.parametrize("die", [4, 6])
def test_a_script_that_also_has_resume_code(run: Any, tmp_path: Path, die: int) -> None:
    """The error names the script's own resume, and the run ends as it should without it."""
    whole = run(OWN, -1, "resumes", folder=tmp_path / "whole").ok().stdout
    assert run(OWN, die, "resumes", folder=tmp_path / "killed").status != 0
    refused = run(OWN, -1, "resumes", folder=tmp_path / "killed")
    assert refused.status == 1
    assert "If the script also has resume code (torch.load" in refused.stderr
    assert run(OWN, -1, "not", folder=tmp_path / "killed").ok().stdout == whole


LISTS = """
import sys, warnings, torch
from torch.utils.data import DataLoader
from torchbus import session

class Object: pass

def train(s, kind, where):
    model, rows = torch.nn.Linear(3, 1), []
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for epoch in s.epochs(3) if kind == "epochs" else range(3):
        if where == "for each epoch":
            rows = []
        for x in DataLoader(torch.randn(12, 3), batch_size=6):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if where != "after each pass":
                rows.append(Object())
        if where == "after each pass":
            rows.append(Object())

for case in sys.argv[1:]:
    with warnings.catch_warnings(record=True) as found, session(checkpoint=case) as s:
        warnings.simplefilter("always")
        train(s, *case.split("/"))
    print(case, *[str(one.message) for one in found], sep=": ")
"""


def test_a_list_that_no_checkpoint_can_hold_is_not_silent(run: Any, tmp_path: Path) -> None:
    """A list that each epoch fills again is none."""
    lost = [
        f"{kind}/{where} pass" for kind in ("range", "epochs") for where in ("in the", "after each")
    ]
    fine = ["range/for each epoch", "epochs/for each epoch"]
    printed = run(LISTS, *lost, *fine, folder=tmp_path).ok().stdout.splitlines()
    words = "the loop extends 'rows', and a checkpoint can't hold what is in it (Object), or not"
    for case, one in zip(lost, printed, strict=False):
        assert one.startswith(f"{case}: {words}")
    assert printed[len(lost) :] == fine
