"""The learning-rate range test, and that nothing of it remains."""

from __future__ import annotations

import copy
import random
import runpy
from pathlib import Path

import pytest
import torch
from torchbus import session

from torchbus_scale.rates import LearningRates, has_diverged, spread
from torchbus_testing.forking import fork_script

LOOP = runpy.run_path(str(Path(__file__).parent / "scripts" / "range_loop.py"))
make, step_of = LOOP["make"], LOOP["step_of"]


def by_hand(lrs):
    """Losses of the same steps in a loop that sets the rates itself."""
    model, optimizer, loader = make()
    step, losses, batches = step_of(model, optimizer), [], iter(())
    for lr in lrs:
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        optimizer.param_groups[0]["lr"] = lr
        losses.append(step(batch).item())
    return losses


def everything(model, optimizer, loader):
    return copy.deepcopy(
        [
            model.state_dict(),
            [p.grad for p in model.parameters()],
            optimizer.state_dict(),
            torch.get_rng_state(),
            random.getstate(),
            [m.training for m in model.modules()],
        ]
    )


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def regression_by_hand(seed: int, steps: int) -> LearningRates:
    """A range test by hand, of a small regression whose batches are noisy."""
    torch.manual_seed(seed)
    x = torch.randn(512, 4)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(512, 1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    losses, rates = [], spread(1e-4, 10.0, steps)
    for rate in rates:
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        rows = torch.randint(512, (16,))
        loss = torch.nn.functional.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if has_diverged(losses):
            break
    return LearningRates(tuple(rates[: len(losses)]), tuple(losses), False)


@pytest.mark.slow
def test_noise_of_single_batches_does_not_decide() -> None:
    suggested = [regression_by_hand(seed, 100).suggestion for seed in range(20)]
    assert all(rate is not None and 3e-3 < rate < 0.1 for rate in suggested), suggested


def test_the_losses_are_those_of_a_loop_that_sets_the_rates():
    with session() as s:
        model, optimizer, loader = make()
        found = s.find_lr(step_of(model, optimizer), optimizer, loader, steps=40)
    assert found.losses == tuple(by_hand(found.lrs))
    assert found.lrs[0] == 1e-7 and found.diverged and len(found.lrs) < 40
    assert found.lrs == tuple(spread(1e-7, 10.0, 40))[: len(found.lrs)]
    assert found.suggestion in found.lrs and 1e-4 < found.suggestion < 3


@pytest.mark.parametrize("steps_before", [0, 5])
def test_nothing_of_it_remains(steps_before):
    """State is equal bit for bit, and the loop afterwards gives the same numbers."""

    def run(finds):
        with session() as s:
            model, optimizer, loader = make()
            step = step_of(model, optimizer)
            for _, batch in zip(range(steps_before), loader, strict=False):
                step(batch)
            if finds:
                before = everything(model, optimizer, loader)
                assert s.find_lr(step, optimizer, loader, steps=30).diverged
                assert equal(everything(model, optimizer, loader), before)
            return [step(batch).item() for batch in loader]

    assert run(True) == run(False)


def test_nothing_remains_after_an_error():
    with session() as s:
        model, optimizer, loader = make()
        step, calls = step_of(model, optimizer), []

        def fails(batch):
            calls.append(step(batch))
            if len(calls) == 7:
                raise ArithmeticError("seven")

        before = everything(model, optimizer, loader)
        with pytest.raises(ArithmeticError, match="seven"):
            s.find_lr(lambda batch: fails(batch) or 1.0, optimizer, loader)
        assert equal(everything(model, optimizer, loader), before)


def test_groups_keep_their_ratio_and_schedulers_wait():
    with session() as s:
        model, _, loader = make()
        groups = [
            {"params": model[0].parameters(), "lr": 0.1},
            {"params": model[3].parameters(), "lr": 0.02},
        ]
        optimizer = torch.optim.SGD(groups)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        seen, step = [], step_of(model, optimizer)

        def both(batch):
            seen.append([group["lr"] for group in optimizer.param_groups])
            loss = step(batch)
            scheduler.step()
            return loss

        s.find_lr(both, optimizer, loader, min_lr=1e-3, max_lr=1e-2, steps=10)
        assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.02]
        assert scheduler.last_epoch == 0
    assert seen[0] == [1e-3, pytest.approx(2e-4)] and seen[-1][0] == pytest.approx(1e-2)


def test_other_plugins_do_not_count_it():
    pytest.importorskip("torchbus_average")
    with session(ema_decay=0.9) as s:
        model, optimizer, loader = make()
        step = step_of(model, optimizer)
        s.find_lr(step, optimizer, loader, steps=10, max_lr=1e-3)
        for batch in loader:
            step(batch)
        assert "values so far, by optimizer: 8" in s.explain()


def test_a_window_of_accumulation_is_one_step_and_none_is_left_open():
    pytest.importorskip("torchbus_accumulate")

    def run(finds):
        with session(accumulate_grad_batches=2) as s:
            model, optimizer, loader = make()
            step = step_of(model, optimizer)
            if finds:
                found = s.find_lr(step, optimizer, loader, max_lr=1e-3, steps=10)
                assert len(found.losses) == 10
            return [step(batch).item() for batch in loader]

    assert run(True) == run(False)


RANKS = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

devices, path = int(sys.argv[1]), sys.argv[2]
options = {"devices": devices, "batch": "global"} if devices > 1 else {}
with session(**options) as s:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(60, 4, dtype=torch.float64)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=12, shuffle=True)

    def step(batch):
        x, y = batch
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    found = s.find_lr(step, optimizer, loader, steps=25)
    assert len(set(s.all_gather_object(found))) == 1
    after = [step(batch).item() for batch in loader]
    if s.is_main:
        torch.save([found.lrs, found.losses, found.suggestion, after], path)
"""


@pytest.mark.parametrize("devices", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_find_what_one_process_finds(tmp_path, devices):
    pytest.importorskip("torchbus_ddp")
    results = []
    for count in (1, devices):
        path = tmp_path / f"{count}.pt"
        assert fork_script(RANKS, str(count), str(path), cwd=tmp_path).ok()
        results.append(torch.load(path))
    (lrs, losses, suggestion, after), others = results
    assert others[0] == lrs and others[2] == suggestion
    assert others[1] == pytest.approx(losses, rel=1e-9) and others[3] == pytest.approx(
        after, rel=1e-9
    )
