"""Loops that do odd things with their gradients give what one process gives, or are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script

SLOW = pytest.mark.slow
ALL = 45
SCRIPT = Path(__file__).parent / "scripts" / "odd_loops.py"

SILENT = "backwards under s.no_sync() are weighted by samples"
LOST = "backward() has raised and the loop continues"
UNLIKE = "several backward() calls before one step()"
UNCLEARED = "a backward() was added to gradients of an earlier window"
BETWEEN = "zero_grad() after backward() and without optimizer.step()"
FAILED = "backward() has failed in the middle of an accumulation window"
SHARED = "accumulate_grad_batches with two optimizers that hold the same parameters"
ASSIGNED = "accumulate_grad_batches with gradients that the loop has assigned"

NO_SYNC = ["no_sync_and_step", "no_sync_of_one", "own_no_sync", "sync_then_no_sync"]
BY_SAMPLES = {"but": [*NO_SYNC, "assigned"]}  # where the loss counts tokens
PARTS = {"but": ["assigned", "backward_fails_uncleared"]}  # fsdp
ONE_OF_EACH_KIND = [
    "new_loaders",
    "zero_in_place",
    "never_zero",
    "own_accumulation",
    "backward_fails",
    "first_backward_fails",
    "skip_before_backward",
    "stale_step",
    "retain_twice",
    "two_losses_one_graph",
    "one_reaches_the_other",
    "two_optimizers_one_model",
    "freeze_and_thaw",
    "sam",
    "evaluates_in_between",
]
TWICE = "the loop accumulates as well"
WINDOWS = {
    "never_zero": UNCLEARED,
    "zero_every_second": UNCLEARED,
    "own_accumulation": TWICE,
    "uneven_optimizers": TWICE,
    "no_sync_dropped": BETWEEN,
    "skip_step_zero_first": BETWEEN,
    "backward_fails": FAILED,
    "backward_fails_and_steps": FAILED,
    "two_optimizers_one_model": SHARED,
    "assigned": ASSIGNED,
    "no_sync_of_one": TWICE,
    "backward_fails_uncleared": TWICE,
    "skip_step_zero_last": TWICE,
}
GLOBAL = {"batch": "global"}
IN_WINDOWS: dict[str, Any] = {"accumulate": 3, "but": ["sam", "own_no_sync", *WINDOWS]}
# at eight batches an epoch, one model's sum is left over from one window to the next
MORE_IN_WINDOWS: dict[str, Any] = {**IN_WINDOWS, "but": [*IN_WINDOWS["but"], "alternating_models"]}


def found(strategy: str = "ddp", devices: int = 2, **more: Any) -> dict[str, Any]:
    result = fork_script(
        SCRIPT, json.dumps({"strategy": strategy, "devices": devices, **more}), timeout_s=500
    )
    assert result.ok(), result.stderr
    lines = map(json.loads, result.stdout.splitlines())
    return {f"{name}, {size}, {loss}": apart for name, size, loss, apart in lines}


def case(name: str, strategy: str, devices: int, *marks: Any, **more: Any) -> Any:
    asked = {"strategy": strategy, "devices": devices, **more}
    return pytest.param(asked, id=name, marks=marks)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "asked",
    [
        case("ddp, one of each kind", "ddp", 2, sizes=[25], loops=ONE_OF_EACH_KIND),
        case("ddp", "ddp", 2, SLOW, sizes=[25], **BY_SAMPLES),
        case("ddp, windows", "ddp", 2, SLOW, sizes=[29], **IN_WINDOWS),
        case("fsdp", "fsdp", 2, SLOW, sizes=[25], **PARTS),
        case("ddp, mean", "ddp", 2, SLOW, sizes=[25, 29], losses=["mean"]),
        case("ddp, 3 ranks", "ddp", 3, SLOW, sizes=[29, 25], **BY_SAMPLES),
        case("ddp, global", "ddp", 2, SLOW, sizes=[29, 26], **GLOBAL, **BY_SAMPLES),
        case(
            "ddp, 3 ranks, global, windows", "ddp", 3, SLOW, sizes=[29], **GLOBAL, **MORE_IN_WINDOWS
        ),
        case("ddp_sharded", "ddp_sharded", 2, SLOW, sizes=[25], **BY_SAMPLES),
        case("ddp_sharded, windows", "ddp_sharded", 2, SLOW, sizes=[29], **IN_WINDOWS),
        case("fsdp, 3 ranks, global", "fsdp", 3, SLOW, sizes=[29], **GLOBAL, **PARTS),
        case("fsdp, windows", "fsdp", 2, SLOW, sizes=[29], **IN_WINDOWS),
    ],
)
def test_ranks_equal_one_process(asked: dict[str, Any]) -> None:
    results = found(**asked)
    bad = {
        name: apart
        for name, apart in results.items()
        if isinstance(apart, str) or not max(apart[:2]) < 1e-12
    }
    assert not bad
    cases = len(asked["sizes"]) * len(asked.get("losses", ["tokens"]))
    loops = len(asked["loops"]) if "loops" in asked else ALL - len(asked.get("but", []))
    assert len(results) == loops * cases


@pytest.mark.timeout(300)
def test_weights_by_samples_are_told() -> None:
    for name, (apart, _, said) in found(loops=["no_sync_and_step"]).items():
        assert apart > 1e-4 and [text for text in said if text.startswith(SILENT)], name
    for name, (_, _, said) in found(loops=NO_SYNC, losses=["mean"]).items():
        assert all("computes 'loss'" in text for text in said), name


@pytest.mark.timeout(300)
def test_what_fsdp_loses_is_told() -> None:
    (one,) = found("fsdp", loops=["backward_fails_uncleared"]).values()
    assert one[2][0].startswith(LOST)


@pytest.mark.timeout(300)
def test_gradients_without_a_backward_are_no_unused_batches() -> None:
    (one,) = found(loops=["assigned"], losses=["mean"]).values()
    assert max(one[:2]) < 1e-12 and not one[2]


@pytest.mark.timeout(500)
def test_what_windows_can_t_weigh_is_refused() -> None:
    results = found(accumulate=3, loops=list(WINDOWS))
    for (name, error), wanted in zip(results.items(), WINDOWS.values(), strict=True):
        assert isinstance(error, str) and wanted in error, name


@pytest.mark.timeout(300)
def test_windows_of_samples_that_count_alike_may_be_left_uncleared() -> None:
    """Two tokens in each sample are not weighted otherwise than samples."""
    results = found(accumulate=3, loops=["never_zero"], losses=["all_tokens"])
    assert [apart[0] < 1e-12 for apart in results.values()] == [True], results


@pytest.mark.timeout(300)
def test_backwards_of_unlike_counts_in_a_window_are_told() -> None:
    (one,) = found(accumulate=3, loops=["two_losses_one_graph"]).values()
    assert [text for text in one[2] if text.startswith(UNLIKE)]


@pytest.mark.timeout(300)
def test_windows_equal_the_big_batch() -> None:
    """A window of three batches, on one rank and on two, is one batch of a plain process."""
    loops = ["retain_twice", "two_models_backwards_first", "evaluates_in_between", "closure"]
    loops += ["no_sync_and_step", "step_twice"]
    for ranks in (1, 2):
        results = found(devices=ranks, accumulate=3, loops=loops, sizes=[48], plain=True)
        assert all(apart[0] < 1e-12 for apart in results.values()) and results, results
