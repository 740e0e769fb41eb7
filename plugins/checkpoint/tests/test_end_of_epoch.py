"""Killed after the last batch of an epoch, before the line that shows its loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)

LOOP = """
import contextlib, os, signal, sys, torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

ranks, kind, die = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def train(s):
    torch.manual_seed(0)
    x = torch.randn(24, 3)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6, shuffle=True)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for epoch in s.epochs(4) if kind == "epochs" else range(4):
        total = 0.0
        for i, (a, b) in enumerate(loader):
            optimizer.zero_grad()
            loss = (model(a) - b).square().mean()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if epoch == die:
            os.kill(os.getpid(), signal.SIGKILL)
        print(f"epoch {epoch} loss {loss.item():.9f} mean {total / (i + 1):.9f}", flush=True)
        scheduler.step()

with session(devices=ranks, batch="global", checkpoint="kept", every_n_steps=2) as s:
    train(s)
"""


@pytest.mark.parametrize("kind", ["range", "epochs"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_line_after_the_loop_shows_what_it_would_have_shown(
    run: Any, tmp_path: Path, ranks: int, kind: str
) -> None:
    whole = run(LOOP, ranks, kind, -1, folder=tmp_path / "whole").ok().stdout.splitlines()
    killed = tmp_path / "killed"
    assert len(whole) == 4
    for epoch in (0, 2):
        ended = run(LOOP, ranks, kind, epoch, folder=killed)
        assert ended.status != 0 and ended.stdout.splitlines() == whole[:epoch], ended.stderr
        assert "before `optimizer.step()`" not in ended.stderr  # torch's warning
    assert run(LOOP, ranks, kind, -1, folder=killed).ok().stdout.splitlines() == whole[2:]


STOPPING = """
import os, signal, sys, torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

ranks, dies = int(sys.argv[1]), int(sys.argv[2])
torch.set_default_dtype(torch.float64)
generator = torch.Generator().manual_seed(0)

def data(size):
    x = torch.randn(size, 4, generator=generator)
    return TensorDataset(x, (x.sum(1) + torch.randn(size, generator=generator) > 0).long())

train, held_out = DataLoader(data(50), 8, shuffle=True), DataLoader(data(21), 8)

class Meter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, count):
        self.sum, self.count = self.sum + value * count, self.count + count

    @property
    def mean(self):
        return self.sum / self.count

def evaluate(model):
    model.eval()
    total, hits, losses, by_name = 0, 0, [], {"rows": 0}
    with torch.no_grad():
        for x, y in held_out:
            out = model(x)
            hits += (out.argmax(1) == y).sum()
            losses.append(cross_entropy(out, y, reduction="sum").item())
            total += len(y)
            by_name["rows"] += len(x)
    return sum(losses) / total, (hits / total).item(), max(losses), by_name["rows"]

def main():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    best, bad, steps, history = 1e9, 0, 0, []
    for epoch in range(30):
        model.train()
        meter, running, batches, total, losses, many = Meter(), 0.0, 0, 0.0, [], []
        for i, (x, y) in enumerate(train):
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running, batches, total = running + loss.item(), batches + 1, total + loss.detach()
            meter.update(loss.item(), 8)
            losses.append(loss.detach())
            many += [loss.item()] * 50
            steps += 1
            if steps == dies:
                os.kill(os.getpid(), signal.SIGKILL)
        value, *others = evaluate(model)
        history.append(value)
        print(epoch, running / batches, (total / (i + 1)).item(), meter.mean, value, *others)
        print(torch.stack(losses).mean().item(), sum(many) / len(many))
        bad = 0 if value < best else bad + 1
        best = min(best, value)
        if bad == 4:
            break
    print(steps, best, history, [parameter.tolist() for parameter in model.parameters()])

with session(devices=ranks, batch="global", seed=1, checkpoint="kept", every_n_steps=3):
    main()
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_counts_and_early_stopping_are_those_of_a_run_never_killed(
    run: Any, tmp_path: Path, ranks: int
) -> None:
    whole = run(STOPPING, ranks, -1, folder=tmp_path / "whole").ok().stdout.splitlines()
    assert 10 < len(whole) < 61, "the loop has stopped early"
    killed = tmp_path / "killed"
    for step in (24, 38):
        ended = run(STOPPING, ranks, step, folder=killed)
        assert ended.status != 0 and set(ended.stdout.splitlines()) < set(whole), ended.stderr
    assert run(STOPPING, ranks, -1, folder=killed).ok().stdout.splitlines() == whole[10:]
