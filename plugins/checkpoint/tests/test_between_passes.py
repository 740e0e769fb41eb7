"""Draws between two passes, which all ranks share, are the same in a run that was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)

LOOP = """
import os, random, signal, sys, torch
from torch.utils.data import DataLoader, Dataset
from torchbus import session

ranks, kind, die, leave = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

class Items(Dataset):
    def __init__(self):
        self.items = list(range(24))

    def __len__(self):
        return 24

    def __getitem__(self, i):
        return torch.tensor(float(self.items[i]))

def train(s):
    torch.manual_seed(0), random.seed(0)
    data = Items()
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    step = 0
    for epoch in s.epochs(4) if kind == "epochs" else range(4):
        model.train()
        for i, a in enumerate(DataLoader(data, batch_size=6, shuffle=True)):
            optimizer.zero_grad()
            loss = model(a[:, None] / 24).square().mean()
            loss.backward()
            optimizer.step()
            seen = [int(x) for part in s.all_gather_object(a.tolist()) for x in part]
            print(step, seen, torch.rand(1).item(), loss.item(), flush=True)
            if step == die:
                os.kill(os.getpid(), signal.SIGKILL)
            step += 1
            if i == leave:
                break
        random.shuffle(data.items)
        model.eval()
        torch.rand(2)

with session(devices=ranks, batch="global", checkpoint="kept", every_n_steps=2) as s:
    train(s)
"""


@pytest.mark.parametrize(
    ("ranks", "kind", "leave"),
    [(2, "range", 2), (2, "epochs", 2), (3, "range", -1), (2, "epochs", -1)],
)
def test_a_run_killed_twice_goes_on_bit_for_bit(
    run: Any, tmp_path: Path, ranks: int, kind: str, leave: int
) -> None:
    whole = run(LOOP, ranks, kind, -1, leave, folder=tmp_path / "whole").ok().stdout.splitlines()
    steps = 4 * (leave + 1 if leave > 0 else 4)
    assert len(whole) == steps
    for die in (4, steps - 2):
        assert run(LOOP, ranks, kind, die, leave, folder=tmp_path / "killed").status != 0
    rest = run(LOOP, ranks, kind, -1, leave, folder=tmp_path / "killed").ok().stdout.splitlines()
    assert rest and rest == whole[-len(rest) :]


NOISY = """
import os, signal, sys, torch
import numpy as np
from torch.utils.data import DataLoader, Dataset, Subset
from torchbus import session

ranks, kind, die = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])

class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 30

    def __getitem__(self, i):
        return torch.tensor(i + self.rng.random())

def everywhere(value):
    return [one for part in s.all_gather_object(value) for one in part]

def train(s):
    torch.manual_seed(0)
    data, noise = Noisy(), torch.Generator().manual_seed(3)
    train_set, test = Subset(data, range(24)), DataLoader(Subset(data, range(24, 30)), batch_size=3)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    loader, step = DataLoader(train_set, batch_size=6, shuffle=True), 0
    for epoch in s.epochs(3) if kind == "epochs" else range(3):
        model.train()
        for a in loader:
            a = a + torch.rand(len(a), generator=noise)
            optimizer.zero_grad()
            loss = model(a[:, None].float() / 24).square().mean()
            loss.backward()
            optimizer.step()
            print(step, everywhere(a.tolist()), loss.item(), flush=True)
            if step == die:
                os.kill(os.getpid(), signal.SIGKILL)
            step += 1
        model.eval()
        with torch.no_grad():
            seen = everywhere([b.tolist() for b in test])
        print(epoch, seen, everywhere([noise.initial_seed(), data.rng.random()]), flush=True)

with session(devices=ranks, batch="global", checkpoint="kept", every_n_steps=1) as s:
    train(s)
"""


@pytest.mark.parametrize(("ranks", "kind"), [(1, "range"), (2, "epochs")])
def test_generators_of_the_script_go_on_bit_for_bit(
    run: Any, tmp_path: Path, ranks: int, kind: str
) -> None:
    whole = run(NOISY, ranks, kind, -1, folder=tmp_path / "whole").ok().stdout.splitlines()
    for die in (2, 6):
        folder = tmp_path / str(die)
        assert run(NOISY, ranks, kind, die, folder=folder).status != 0
        rest = run(NOISY, ranks, kind, -1, folder=folder).ok().stdout.splitlines()
        assert rest and rest == whole[-len(rest) :]


MODES = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

ranks, kind, max_steps = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])

with session(devices=ranks, batch="global", checkpoint="kept", max_steps=max_steps) as s:
    torch.manual_seed(0)
    x = torch.randn(24, 3)
    train, test = DataLoader(TensorDataset(x), 6, shuffle=True), DataLoader(TensorDataset(x), 6)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for epoch in s.epochs(3) if kind == "epochs" else range(3):
        for (a,) in train:
            model.train()
            optimizer.zero_grad()
            model(a).square().mean().backward()
            optimizer.step()
        model.eval()
        print(epoch, sum(model(a).sum().item() for (a,) in test), flush=True)
"""


@pytest.mark.parametrize("steps", [6, 8])
@pytest.mark.parametrize(("ranks", "kind"), [(1, "range"), (2, "range"), (2, "epochs")])
def test_passes_that_begin_in_eval_mode(
    run: Any, tmp_path: Path, ranks: int, kind: str, steps: int
) -> None:
    """A loader that has trained is divided, and one that evaluates is not, in later runs too."""
    whole = run(MODES, ranks, kind, -1, folder=tmp_path / "whole").ok().stdout.splitlines()
    run(MODES, ranks, kind, steps, folder=tmp_path / "cut").ok()
    rest = run(MODES, ranks, kind, -1, folder=tmp_path / "cut").ok().stdout.splitlines()
    assert rest and rest == whole[-len(rest) :]
