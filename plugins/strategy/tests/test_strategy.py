"""The base class of strategies: what a subclass must say, and what it gets for that."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from torchbus import session
from torchbus.errors import PluginError, UsageError

from torchbus_strategy.process_group import group_timeout
from torchbus_strategy.strategy import Strategy
from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"


class Silent(Strategy):
    """Does not say how gradients meet."""


class Averaging(Strategy):
    name = "averaging"

    def average(self, tensors: object) -> None:
        raise AssertionError("one rank has nobody to average with")


def test_a_strategy_says_how_gradients_meet() -> None:
    with pytest.raises(
        PluginError, match=r"Silent is a Strategy that does not define .*: define av"
    ):
        Silent()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"backend": 3}, "backend"),
        ({"loss_reduction": "median"}, "loss_reduction='median' is unknown"),
        ({"loss_weight": "kilos"}, "loss_weight"),
        ({"sync_loss": 1}, "sync_loss"),
    ],
)
def test_its_options_are_checked(option: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Averaging(**option)  # type: ignore[arg-type]


def test_one_rank_needs_no_engine() -> None:
    with session(strategy=Averaging()) as s:
        assert "averaging on one rank: nothing to synchronise" in s.explain()


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_any_loop_equals_one_process(ranks: int, tmp_path: Path) -> None:
    """Each form of loop that the script has, in float64; a batch of ranks is that of one process."""
    result = fork_script(SCRIPTS / "own_strategy.py", ranks, cwd=tmp_path, timeout_s=240)
    assert result.ok(), result.stderr
    differences = dict(line.split() for line in result.stdout.splitlines())
    assert len(differences) == 9
    assert {form: far for form, far in differences.items() if float(far) > 1e-13} == {}


def test_a_rank_that_fails_in_backward_leaves_nobody_waiting(tmp_path: Path) -> None:
    result = fork_script(SCRIPTS / "own_strategy.py", 2, "fails", cwd=tmp_path, timeout_s=120)
    assert result.ok(1)
    assert "RankFailed: rank 1 failed first: RuntimeError: only rank 1 fails" in result.stderr


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("Returns", r"Returns\.average returned a list: it must replace each tensor by its mean"),
        ("Sums", r"Sums\.average made 1 of the numbers 0 to 1 of the ranks, whose mean is 0\.5:"),
        ("LeavesOut", r"LeavesOut\.average made [01] of the numbers 0 to 1 of the ranks, whose"),
    ],
)
def test_an_average_that_is_none_is_refused_in_the_first_backward(
    strategy: str, message: str
) -> None:
    result = fork_script(SCRIPTS / "wrong_average.py", strategy, timeout_s=60)
    assert re.search(f"PluginError: {message}", result.ok(1).stderr), result.stderr


def test_a_wait_is_ended_by_the_guard_before_nccl_gives_up() -> None:
    asked = timedelta(seconds=20)
    assert group_timeout("gloo", asked) == asked
    assert group_timeout("nccl", asked) == group_timeout("cpu:gloo,cuda:nccl", asked) > asked
