"""Variables and objects of a script, in the forms that scripts have, continue after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)

SCRIPT = """
import os, signal, sys
from collections import Counter, defaultdict, deque

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

kind, die = sys.argv[1], int(sys.argv[2])

class Meter:
    def __init__(self):
        self.values = []

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
    steps = 0
    for epoch in s.epochs(3) if kind == "epochs" else range(3):
        for a, b in loader:
            optimizer.zero_grad()
            loss = (model(a) - b).square().mean()
            loss.backward()
            optimizer.step()
            steps += 1
            value = round(loss.item(), 6)
            by_name["loss"].append(value)
            last.append(value)
            counts["steps"] += 1
            nested[epoch]["loss"].append(value)
            meters["loss"].values.append(value)
            trainer.meter.values.append(value)
            if die == steps:
                os.kill(os.getpid(), signal.SIGKILL)
    print([by_name, last, counts, dict(nested), meters["loss"].values, trainer.meter.values])

with session(checkpoint="kept", every_n_steps=5) as s:
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


@pytest.mark.parametrize("kind", ["range", "epochs"])
def test_collections_and_objects_in_objects(run: Any, tmp_path: Path, kind: str) -> None:
    """A defaultdict, a deque, a Counter; objects in a dict, and in an attribute of another."""
    whole = run(SCRIPT, kind, -1, folder=tmp_path / "whole").ok().stdout
    assert run(SCRIPT, kind, 7, folder=tmp_path / "killed").status != 0
    assert run(SCRIPT, kind, -1, folder=tmp_path / "killed").ok().stdout == whole


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
