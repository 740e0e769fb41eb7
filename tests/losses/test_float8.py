"""``precision="fp8"`` in torchao's emulation, against torchao by hand in one process."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from torchbus_testing.forking import ForkServer

SCRIPT = Path(__file__).parent / "scripts" / "precision_fp8.py"
pytestmark = [
    pytest.mark.skipif(find_spec("torchao") is None, reason="torchao is not installed"),
    pytest.mark.timeout(300),
]
BF16 = 2**-8  # gradients of weights are bfloat16, of a whole batch or of a rank's share


@pytest.fixture(scope="module")
def server():
    """Has imported torchao, which takes seconds."""
    with ForkServer("torchao.float8") as one:
        yield one


def run(server, strategy, ranks, recipe, **options):
    words = json.dumps([strategy, ranks, recipe, options])
    return server.run(SCRIPT, words, timeout_s=200).json()


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("strategy", "ranks"), [slow("none", 1), ("ddp", 2), ("fsdp", 2), slow("ddp_sharded", 2)]
)
def test_each_rank_scales_its_own_share(server, strategy, ranks):
    """Bit for bit on one rank: the process by hand scales the ranks' shares apart."""
    found = run(server, strategy, ranks, "tensorwise")
    assert found["apart"] <= (0.0 if ranks == 1 else 1e-6), found
    assert found["layer"] == "Linear"
    assert (
        "float8 Sequential: 2 linear layers multiply in float8: 1.0, 1.2; left in bfloat16: 0"
        " (5 x 32, not multiples of 16); 2 (32 x 3, not multiples of 16)"
    ) in found["told"]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 3), ("fsdp", 3)])
def test_scales_of_rows_do_not_depend_on_the_share(server, strategy, ranks):
    """The process by hand takes a batch as a whole."""
    found = run(server, strategy, ranks, "rowwise_with_gw_hp")
    assert found["apart"] < BF16 / 4, found


def test_a_skipped_layer_makes_a_difference(server):
    """So float8 is not bfloat16 by another name."""
    assert run(server, "none", 1, "tensorwise", fp8_skip=["1.0"])["apart"] > 1e-4
