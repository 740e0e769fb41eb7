"""Learning rates on one rank; accumulation stands in for ranks."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.errors import UsageError

from torchbus_scale.plugin import Scale
from torchbus_testing.forking import fork_script


class Accumulating:
    """A plugin that makes a step of this number of batches."""

    def __init__(self, grad_batches: int) -> None:
        self.grad_batches = grad_batches


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)


@pytest.mark.parametrize(("rule", "rate"), [("linear", 0.4), ("sqrt", 0.2)])
def test_rates_are_scaled_once_for_every_group(rule: str, rate: float) -> None:
    with session(Accumulating(4), scale_lr=rule) as s:
        made = optimizer()
        made.add_param_group({"params": nn.Linear(1, 1).parameters(), "lr": 0.2})
        scheduler = torch.optim.lr_scheduler.StepLR(made, 1, 0.5)
        assert [group["lr"] for group in made.param_groups] == pytest.approx([rate, 2 * rate])
        made.step()
        scheduler.step()
        assert made.param_groups[0]["lr"] == pytest.approx(rate / 2)
        assert f"learning rates x {rate / 0.1:g}" in " ".join(s.explain().split())


def test_a_scheduler_made_before_the_block_is_scaled_too() -> None:
    made = optimizer()
    scheduler = torch.optim.lr_scheduler.StepLR(made, 1, 0.5)
    with session(Accumulating(4), scale_lr="linear"):
        made.step()
        scheduler.step()
    assert made.param_groups[0]["lr"] == pytest.approx(0.2)


def one_cycle(made: torch.optim.Optimizer, factor: float) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(made, max_lr=0.3 * factor, total_steps=9)


def cyclic(made: torch.optim.Optimizer, factor: float) -> Any:
    bounds = 0.1 * factor, [0.5 * factor]
    return torch.optim.lr_scheduler.CyclicLR(made, *bounds, step_size_up=3)


@pytest.mark.parametrize("schedule", [one_cycle, cyclic])
@pytest.mark.parametrize("is_before", [True, False])
def test_schedulers_that_set_rates_themselves_are_scaled(schedule: Any, is_before: bool) -> None:
    """Their rates are those of a script that has multiplied its own rates."""

    def momentum() -> torch.optim.Optimizer:
        return torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1, momentum=0.9)

    def steps(made: torch.optim.Optimizer, scheduler: Any) -> list[float]:
        rates = rates_of(made)
        for _ in range(8):
            made.step()
            scheduler.step()
        return rates

    made = momentum() if is_before else None
    early = schedule(made, 1) if made is not None else None
    with session(Accumulating(4), scale_lr="linear"):
        made = made or momentum()
        found = steps(made, early or schedule(made, 1))
    made = momentum()
    assert found == pytest.approx(steps(made, schedule(made, 4)))


def test_warm_up_grows_from_the_scripts_own_rate() -> None:
    rates = []
    with session(Accumulating(4), scale_lr="linear", warmup_steps=3):
        made = optimizer()
        made.register_step_post_hook(lambda one, *_: rates.append(one.param_groups[0]["lr"]))
        for _ in range(5):
            made.step()
            assert made.param_groups[0]["lr"] == pytest.approx(0.4)
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def rates_of(made: torch.optim.Optimizer) -> list[float]:
    """The rates of its first group that its steps will use."""
    rates: list[float] = []
    made.register_step_post_hook(lambda one, *_: rates.append(float(one.param_groups[0]["lr"])))
    return rates


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_a_warm_up_without_scaling_beside_the_loops_own_schedulers(rate: Any) -> None:
    with session(warmup_steps=4) as s:
        made = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=rate)
        rates, scheduler = rates_of(made), torch.optim.lr_scheduler.StepLR(made, 1, 0.5)
        for step in range(6):
            made.step()
            assert float(made.param_groups[0]["lr"]) == pytest.approx(0.1 * 0.5**step)
            scheduler.step()
        assert "learning rates grow over the first 4 steps" in s.explain()
    parts = [0.25, 0.5, 0.75, 1, 1, 1]
    assert rates == pytest.approx([0.1 * 0.5**step * part for step, part in enumerate(parts)])


def test_every_optimizer_warms_up_by_its_own_steps() -> None:
    with session(warmup_steps=2):
        one, two = optimizer(), optimizer()
        rates = rates_of(one), rates_of(two)
        for _ in range(3):
            one.step()
        two.step()
    assert rates[0] == pytest.approx([0.05, 0.1, 0.1]) and rates[1] == pytest.approx([0.05])


def test_a_step_that_fails_leaves_the_rate_as_it_was() -> None:
    def fails() -> float:
        raise KeyError("closure")

    with session(warmup_steps=4):
        made = optimizer()
        rates = rates_of(made)
        with pytest.raises(KeyError, match="closure"):
            made.step(fails)
        assert made.param_groups[0]["lr"] == 0.1
        made.step()
    assert rates == pytest.approx([0.025])


def test_a_warm_up_alone_goes_on_after_a_checkpoint() -> None:
    first, second = Scale(warmup_steps=3), Scale(warmup_steps=3)
    with session(first):
        made = optimizer()
        made.step()
        state = first.state_dict()
        del made
    with session(second):
        second.load_state_dict(state)
        made = optimizer()
        rates = rates_of(made)
        made.step()
        made.step()
    assert rates == pytest.approx([0.2 / 3, 0.1])


LOOP = """
import json, sys, torch
from torchbus import session
with session(warmup_steps=3, batch="global", strategy="ddp", devices=int(sys.argv[1])):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    data = torch.utils.data.TensorDataset(torch.randn(36, 4), torch.randn(36, 1))
    for x, y in torch.utils.data.DataLoader(data, batch_size=6, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
print(json.dumps(weights))
"""


def test_a_warm_up_on_three_ranks_is_that_of_one_process() -> None:
    one, three = (fork_script(LOOP, ranks) for ranks in ("1", "3"))
    assert one.ok() and three.ok(), (one, three)
    assert json.loads(three.stdout) == pytest.approx(json.loads(one.stdout), abs=1e-6)


def test_the_effective_batch_size() -> None:
    with session(Accumulating(3), "scale") as s:
        _loader = DataLoader(range(8), batch_size=4)  # type: ignore[arg-type]
        assert s.effective_batch_size == 12


def test_a_search_leaves_no_trace_in_the_window() -> None:
    pytest.importorskip("torchbus_accumulate")
    with session(accumulate_grad_batches=4) as s, warnings.catch_warnings():
        warnings.simplefilter("error")
        model = nn.Linear(1, 1)
        made = torch.optim.SGD(model.parameters(), lr=0.1)

        def trial(size: int) -> None:
            model(torch.zeros(size, 1)).square().mean().backward()
            made.zero_grad()

        s.find_batch_size(trial, 16)
        for x in DataLoader(torch.ones(64, 1), batch_size=4):  # type: ignore[arg-type]
            made.zero_grad()
            model(x).square().mean().backward()
            made.step()


def test_very_large_batches_are_said() -> None:
    with (
        session(Accumulating(3), scale_lr="linear"),
        pytest.warns(UserWarning, match=r"12288 samples \(4096 x 1 ranks x 3 accumulated\)"),
    ):
        list(DataLoader(range(8), batch_size=4096))  # type: ignore[arg-type]


def test_warm_up_goes_on_after_a_checkpoint(tmp_path: Path) -> None:
    rates = []

    def steps(number: int) -> torch.optim.Optimizer:
        made = optimizer()
        made.register_step_post_hook(lambda one, *_: rates.append(one.param_groups[0]["lr"]))
        for _ in range(number):
            made.step()
        return made

    first, second = Scale("linear", 3), Scale("linear", 3)
    with session(Accumulating(4), first):
        made = steps(2)
        torch.save(first.state_dict(), tmp_path / "state.pt")
        del made
    with session(Accumulating(4), second):
        second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        steps(3)
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert first.state_dict() == {"steps": []}, "the optimizer is gone"


def test_the_batch_size_that_fits() -> None:
    def step(batch_size: int) -> None:
        if batch_size > 20:
            raise RuntimeError("CUDA out of memory.")

    with session(Scale()) as s:
        assert 10 < s.find_batch_size(step, 64) <= 20


def test_an_error_that_is_not_of_memory_passes() -> None:
    def step(batch_size: int) -> None:
        raise KeyError(batch_size)

    with session(Scale()) as s, pytest.raises(KeyError, match="64"):
        s.find_batch_size(step, 64)


@pytest.mark.parametrize("start", [0, -1, 2.5, True])
def test_a_search_starts_with_a_number_of_samples(start: object) -> None:
    with (
        session(Scale()) as s,
        pytest.raises(UsageError, match=r"find_batch_size\(start=.*at least 1"),
    ):
        s.find_batch_size(lambda batch_size: None, start)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale_lr": "cubic"}, "'linear' or 'sqrt'"),
        ({"scale_lr": "linear", "warmup_steps": -1}, "0 or more"),
        ({"scale_lr": "linear", "warmup_steps": 2.5}, "a number of steps"),
    ],
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(**options)


@pytest.mark.parametrize("defaults", [{}, {"lr": None}])
def test_an_optimizer_without_a_rate_to_scale(defaults: dict[str, Any]) -> None:
    class Own(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None: ...

    with (
        session(Accumulating(4), scale_lr="linear"),
        pytest.raises(
            UsageError, match=r"^scale_lr=\.\.\. with Own: its groups have no number 'lr'"
        ),
    ):
        Own(nn.Linear(1, 1).parameters(), defaults)
    with (
        session(warmup_steps=3),
        pytest.raises(
            UsageError, match=r"^warmup_steps=\.\.\. with Own: its groups have no number"
        ),
    ):
        Own(nn.Linear(1, 1).parameters(), defaults)
    with session(scale_lr="linear"):  # once is nothing to scale
        Own(nn.Linear(1, 1).parameters(), defaults)


def test_find_batch_size_of_no_function() -> None:
    with (
        session() as s,
        pytest.raises(
            UsageError, match=r"^find_batch_size\(3\): pass a function of the batch size"
        ),
    ):
        s.find_batch_size(3)
