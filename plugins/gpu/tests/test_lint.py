"""Each lint: found once with the line of the loop, not found where there is nothing to find, and
torch as it was.
"""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchbus import session

from torchbus_gpu.lint import objects_in, workers_needed
from torchbus_testing.scripts import run_script
from torchbus_testing.state import assert_torch_unchanged, torch_state

SCRIPTS = Path(__file__).parent / "scripts"

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

Do = Callable[[Tensor, torch.optim.Optimizer, int], Any]


def loop(do: Do, steps: int = 40) -> None:
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss = net(torch.ones(2, 3)).square().mean()
        loss.backward()
        optimizer.step()
        do(loss, optimizer, step)


def said(do: Do, *, lint: bool = True, steps: int = 40) -> list[warnings.WarningMessage]:
    before = torch_state()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with session(lint=lint):
            loop(do, steps)
    assert_torch_unchanged(before)
    return list(caught)


def line_of(function: Callable[..., Any]) -> int:
    return inspect.getsourcelines(function)[1]


SYNCS: list[Do] = [
    lambda loss, optimizer, step: loss.item(),
    lambda loss, optimizer, step: loss.detach().cpu(),
    lambda loss, optimizer, step: loss.detach().numpy(),
    lambda loss, optimizer, step: loss.tolist(),
    lambda loss, optimizer, step: float(loss.detach()),
    lambda loss, optimizer, step: loss > 1e9 or None,
    lambda loss, optimizer, step: f"{loss:.4f}",
]


@pytest.mark.parametrize("do", SYNCS)
def test_a_synchronisation_in_every_step(do: Do) -> None:
    (warning,) = said(do)
    assert "of a tensor in every step" in str(warning.message)
    assert (warning.filename, warning.lineno) == (__file__, line_of(do))


def test_a_synchronisation_now_and_then_is_fine() -> None:
    assert said(lambda loss, optimizer, step: loss.item() if step % 5 == 0 else None) == []
    assert said(lambda loss, optimizer, step: loss.item(), steps=15) == []


def test_adam_reads_its_own_steps_without_being_named() -> None:
    adam = torch.optim.Adam([nn.Parameter(torch.ones(1), requires_grad=True)])

    def do(loss: Tensor, optimizer: torch.optim.Optimizer, step: int) -> None:
        adam.param_groups[0]["params"][0].grad = torch.ones(1)
        adam.step()

    assert said(do) == []


def test_a_dataset_that_reads_values_is_no_step_of_the_loop() -> None:
    class Values(Dataset[Tensor]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Tensor:
            return torch.tensor(torch.ones(1).item())

    batches = iter(DataLoader(Values()))
    assert said(lambda loss, optimizer, step: next(batches)) == []


def test_empty_cache_in_the_loop() -> None:
    def do(loss: Tensor, optimizer: torch.optim.Optimizer, step: int) -> None:
        if step % 4 == 0:
            torch.cuda.empty_cache()

    (warning,) = said(do)
    assert "torch.cuda.empty_cache() in the loop" in str(warning.message)
    assert (warning.filename, warning.lineno) == (__file__, line_of(do) + 2)


def test_zeros_instead_of_no_gradients() -> None:
    do: Do = lambda loss, optimizer, step: optimizer.zero_grad(set_to_none=False)  # noqa: E731
    (warning,) = said(do)
    assert "zero_grad(set_to_none=False) in the loop" in str(warning.message)
    assert (warning.filename, warning.lineno) == (__file__, line_of(do))
    assert said(lambda loss, optimizer, step: optimizer.zero_grad(set_to_none=True)) == []


def test_nothing_is_said_or_replaced_without_lint() -> None:
    def do(loss: Tensor, optimizer: torch.optim.Optimizer, step: int) -> None:
        loss.item()
        torch.cuda.empty_cache()
        optimizer.zero_grad(set_to_none=False)
        assert "item" not in vars(torch.Tensor) and not hasattr(
            torch.cuda.empty_cache, "__wrapped__"
        )

    assert said(do, lint=False) == []


OBJECTS = SCRIPTS / "many_objects.py"


@pytest.mark.parametrize(
    ("paths", "workers", "found"),
    [
        ("['x'] * 1_200_000", 2, True),
        pytest.param("['x'] * 1_200_000", 1, False, marks=pytest.mark.slow),
        pytest.param("numpy.zeros(1_200_000)", 2, False, marks=pytest.mark.slow),
    ],
)
def test_a_dataset_of_a_million_objects(paths: str, workers: int, found: bool) -> None:
    result = run_script(OBJECTS, paths, workers, timeout_s=110)
    assert result.ok()
    told = [line for line in result.stderr.splitlines() if "UserWarning" in line]
    assert len(told) == found
    if found:
        number = 1 + OBJECTS.read_text().splitlines().index("    for batch in loader:  # the line")
        assert (
            f"{OBJECTS.name}:{number}: UserWarning: Names.paths holds about 1,200,000 Python objects"
            in told[0]
        )


@UNHURRIED
@given(
    st.recursive(
        st.integers(),
        lambda inner: (
            st.lists(inner, max_size=5) | st.dictionaries(st.integers(), inner, max_size=5)
        ),
        max_leaves=30,
    )
)
def test_few_objects_are_counted_exactly(value: Any) -> None:
    def count(thing: Any) -> int:
        values = list(thing.values()) if isinstance(thing, dict) else thing
        return sum(1 + (count(one) if isinstance(one, list | dict) else 0) for one in values)

    assert objects_in([value]) == count([value])


class SlowSamples(Dataset[Tensor]):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.seconds)
        return torch.ones(3)


@pytest.mark.parametrize(
    ("sample_s", "step_s", "found"), [(0.004, 0.002, True), (0.0, 0.05, False)]
)
def test_workers_for_a_loader_that_is_waited_for(
    sample_s: float, step_s: float, found: bool
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with session(lint=True, interval_s=0.05):
            ends = time.monotonic() + 4
            for _ in DataLoader(SlowSamples(sample_s)):
                time.sleep(step_s)
                if caught or time.monotonic() > ends:
                    break
    assert len(caught) == found
    if found:
        assert "the loop waits for this loader" in str(caught[0].message) and "instead of 0" in str(
            caught[0].message
        )
        assert caught[0].filename == __file__


@UNHURRIED
@given(workers=st.integers(0, 64), share=st.floats(0.0, 1.0))
def test_more_workers_are_suggested_and_more_for_longer_waits(workers: int, share: float) -> None:
    assert workers < workers_needed(workers, share) <= workers_needed(workers, 1.0)


def test_workers_that_would_be_enough() -> None:
    assert workers_needed(0, 0.5) == 1  # as long as a step
    assert workers_needed(0, 0.9) == 9
    assert workers_needed(4, 0.5) == 8
