"""Horovod's averages, compared with one process without Horovod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script

pytest.importorskip(
    "horovod.torch",
    reason="Horovod is not built: see contrib/horovod/README.md",
    exc_type=ImportError,
)
SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(
    scope="module", params=[pytest.param(2), pytest.param(3, marks=pytest.mark.slow)], ids=str
)
def exact(request: pytest.FixtureRequest) -> Any:
    return fork_script(SCRIPTS / "horovod_numbers.py", request.param, "none", timeout_s=240).json()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("loop", ["adamw", "sgd", "reentrant"])
def test_parameters_losses_and_norms_are_those_of_one_process(exact: Any, loop: str) -> None:
    """A scheduler, clipping, a ragged end; gradients of a checkpoint's inner graph."""
    assert max(exact[loop]) < 1e-6 and all(exact["same"]), exact


def test_double_precision(exact: Any) -> None:
    assert max(exact["double"]) < 1e-13


def test_gradients_travel_while_backward_makes_the_next_ones(exact: Any) -> None:
    """Number 0 is the ranks' metadata, 1 the first layer's weight, and 10 the last layer's bias.

    Number 0 comes last, so Horovod's last cycle includes it.
    """
    order = exact["plain order"]
    assert sorted(order) == sorted(["first", *map(str, range(11))])
    assert set(order[: order.index("first")]) >= {"9", "10"} and order[-1] == "0"


def test_gradients_of_an_inner_graph_wait_for_the_end(exact: Any) -> None:
    """3 to 8 belong to layers in checkpoints."""
    order = exact["reentrant order"]
    inner = [order.index(f"{number} after") for number in range(3, 9)]
    assert order.index("0 after") < min(inner)


def test_a_gradient_that_changes_on_its_way_is_refused(exact: Any) -> None:
    assert "use checkpoint(..., use_reentrant=False)" in exact["shared"]


def test_nothing_is_left(exact: Any) -> None:
    """``tasks`` counts threads of libraries too. The README's build of Horovod leaves none."""
    assert exact["threads"] == ["MainThread"] and exact["variables"] == []
    assert exact["tasks"] == 0


def test_explain_says_who_averages(exact: Any) -> None:
    assert "horovod over gloo: Horovod averages gradients, while" in exact["explain"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sixteen_bits_are_near() -> None:
    found = fork_script(SCRIPTS / "horovod_numbers.py", 2, "fp16", timeout_s=240).json()
    assert 1e-7 < found["adamw"][0] < 0.02 and all(found["same"]), found
    assert "averages gradients, in 16 bits, while" in found["explain"]
