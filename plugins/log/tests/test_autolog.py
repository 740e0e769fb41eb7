"""What a session with a logger logs by itself."""

from __future__ import annotations

import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

from torchbus_testing.recorder import RecordingLogger


def test_steps_last_as_long_as_their_pass():
    """From its first batch on; what comes between two passes is part of no step."""
    hears = RecordingLogger()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    took = []
    with session(strategy=None, logger=hears, log_every_n_steps=1):
        for _ in range(2):
            began = time.perf_counter()
            for (x,) in DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=2):
                time.sleep(0.02)
                model(x).mean().backward()
                optimizer.step()
            took.append(time.perf_counter() - began)
            time.sleep(0.2)
    steps, seconds = zip(*hears.of("step_time_s"), strict=True)
    assert steps == (1, 2, 3, 4) and min(seconds) >= 0.02
    assert sum(seconds[:2]) <= took[0] and sum(seconds[2:]) <= took[1]


def test_the_session_logs_what_it_hears():
    hears = RecordingLogger()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(
        [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.25}], lr=0.5
    )
    losses = []
    with session(strategy=None, logger=hears, log_every_n_steps=2) as s:
        for _ in range(2):
            for (x,) in DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2):
                loss = model(x[:, None]).square().mean()
                loss.backward()
                losses.append(loss.item())
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        s.log("lr", 3.0)
    assert hears.of("loss") == [(step, losses[step - 1]) for step in (2, 3, 4, 6)]
    assert hears.of("lr/group1") == [(step, 0.25) for step in (2, 3, 4, 6)]
    assert hears.of("grad_norm")[-1] == (6, norm.item())
    assert {step for step, value in hears.of("samples_per_s") if value > 0} == {2, 3, 4, 6}
    assert all(value > 0 for _, value in hears.of("step_time_s"))
    assert hears.of("lr") == [(6, 3.0)]  # the script's own names are its own


def test_a_resumed_run_knows_the_names_of_the_loop(tmp_path):
    def run(max_steps: int) -> list[tuple[int, float]]:
        hears, net = RecordingLogger(), torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        options = {"checkpoint": str(tmp_path), "max_steps": max_steps, "log_every_n_steps": 1}
        with session(strategy=None, logger=hears, **options) as s:
            for epoch in s.epochs(3):
                for x in DataLoader(torch.ones(4, 1), batch_size=2):
                    net(x).mean().backward()
                    optimizer.step()
                    s.log("loss", 100.0 + epoch)
        return hears.of("loss")

    run(3)
    resumed = run(9)
    assert resumed == [(4, 101.0), (5, 102.0), (6, 102.0)]


def test_automatic_values_of_a_resumed_run_belong_to_its_steps(tmp_path):
    def run(max_steps: int) -> RecordingLogger:
        hears, net = RecordingLogger(), torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        options = {"checkpoint": str(tmp_path), "max_steps": max_steps, "log_every_n_steps": 2}
        with session(strategy=None, logger=hears, gradient_clip_val=1.0, **options) as s:
            for _ in s.epochs(3):
                for x in DataLoader(torch.ones(4, 1), batch_size=2):
                    optimizer.zero_grad()
                    net(x).mean().backward()
                    optimizer.step()
        return hears

    run(3)
    resumed = run(9)
    assert [step for step, _ in resumed.of("grad_norm")] == [4, 6]
    assert [step for step, _ in resumed.of("step_time_s")] == [4, 6]


def test_two_optimizers_have_two_losses():
    hears = RecordingLogger()
    nets = [torch.nn.Linear(1, 1) for _ in range(2)]
    optimizers = [
        torch.optim.SGD(net.parameters(), lr=rate)
        for net, rate in zip(nets, (0.1, 0.2), strict=True)
    ]
    with session(strategy=None, logger=hears, log_every_n_steps=1):
        for _ in range(2):
            for factor, net, optimizer in zip((1.0, 10.0), nets, optimizers, strict=True):
                optimizer.zero_grad()
                (net(torch.ones(1, 1)).sum() * 0 + factor).backward()
                optimizer.step()
    assert {value for _, value in hears.of("loss")} == {1.0} and {
        value for _, value in hears.of("loss_2")
    } == {10.0}
    assert dict.fromkeys(value for _, value in hears.of("lr_2")) == {0.2: None}


class WithoutRate(torch.optim.Optimizer):
    """Finds its steps by itself."""

    def __init__(self, parameters, **defaults):
        super().__init__(parameters, defaults)

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data -= 0.5 * parameter.grad


@pytest.mark.parametrize("defaults", [{}, {"lr": None}, {"lr": "auto"}])
def test_an_optimizer_without_a_rate(defaults):
    """What it has no number of is not logged, and the rest is."""
    hears = RecordingLogger()
    model = torch.nn.Linear(1, 1)
    optimizer = WithoutRate(
        [{"params": [model.weight]}, {"params": [model.bias], "lr": torch.tensor(0.25)}], **defaults
    )
    with session(strategy=None, logger=hears, log_every_n_steps=1) as s:
        for (x,) in DataLoader(TensorDataset(torch.ones(2, 1)), batch_size=1):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        assert "optimizer: WithoutRate, 2 tensors, lr 0.25" in s.explain()
    assert {name for _, _, metrics, _ in hears.lines for name in metrics} == {
        "loss",
        "lr/group1",
        "samples_per_s",
        "step_time_s",
    }
    assert hears.of("lr/group1") == [(1, 0.25), (2, 0.25)]


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "freed"])
def test_steps_of_one_optimizer_after_another(keeps):
    """Folds of a cross-validation: counted on, whether Python gives a new optimizer the address of
    an old one or not (that differs by rank).
    """
    hears, kept = RecordingLogger(), []
    weight = torch.nn.Parameter(torch.ones(2))
    with session(strategy=None, logger=hears, autolog=False, log_every_n_steps=2) as s:
        for _ in range(3):
            optimizer = torch.optim.SGD([weight], lr=0.1)
            kept += [optimizer] if keeps else []
            for _ in range(3):
                optimizer.zero_grad()
                weight.sum().backward()
                optimizer.step()
                s.log("value", 1.0)
            del optimizer
    assert [step for step, _ in hears.of("value")] == list(range(1, 10))


@pytest.mark.parametrize(
    ("order", "steps"),
    [
        ("dg" * 3, [1, 1, 2, 2, 3, 3]),
        ("dddgdddg", [1, 2, 3, 3, 4, 5, 6, 6]),
        ("abcabc", [1, 1, 1, 2, 2, 2]),
    ],
)
def test_steps_of_optimizers_in_turn(order, steps):
    hears = RecordingLogger()
    weights = {name: torch.nn.Parameter(torch.ones(2)) for name in order}
    optimizers = {name: torch.optim.SGD([weight], lr=0.1) for name, weight in weights.items()}
    with session(strategy=None, logger=hears, autolog=False, log_every_n_steps=100) as s:
        for name in order:
            weights[name].sum().backward()
            optimizers[name].step()
            s.log("value", 1.0, on_step=True)
    assert [step for step, _ in hears.of("value")] == steps


def test_the_loss_of_a_loop_with_its_own_scaler():
    hears = RecordingLogger()
    with session(strategy=None, logger=hears, log_every_n_steps=1):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
        loss = model(torch.ones(4, 2)).square().mean()
        scaler.scale(loss / 2).backward()
        scaler.step(optimizer)
    assert hears.of("loss") == [(1, pytest.approx(loss.item()))]


def test_a_rate_is_that_of_the_step():
    """Not the one that a warm-up shows between the steps, nor the scheduler's next one."""
    hears = RecordingLogger()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    with session(strategy=None, logger=hears, log_every_n_steps=1, warmup_steps=4):
        for (x,) in DataLoader(TensorDataset(torch.ones(6, 1))):
            model(x).mean().backward()
            optimizer.step()
            assert optimizer.param_groups[0]["lr"] in (1.0, 0.5)
            schedule.step()
    assert hears.of("lr") == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 0.5), (5, 0.5), (6, 0.5)]
