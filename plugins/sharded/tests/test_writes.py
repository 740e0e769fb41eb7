"""Parameters that a forward writes, under fsdp and ZeRO-2, against one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"
FSDP = {"strategy": "fsdp"}
WHOLE = {"strategy": "fsdp", "auto_wrap_policy": None}
ZERO_2 = {"strategy": "ddp_sharded", "shard_gradients": True}
TO_OWN = (
    "clamp",
    "clamp data",
    "assign data",
    "divide by norm",
    "look",
    "call another",
    "between",
)
TO_OTHERS = ("follow", "follow data", "follow foreach")


@pytest.mark.parametrize(
    ("ranks", "options", "ways"),
    [
        pytest.param(2, FSDP, (*TO_OWN, *TO_OTHERS), id="fsdp"),
        pytest.param(3, WHOLE, (*TO_OWN, *TO_OTHERS), id="one unit", marks=pytest.mark.slow),
        pytest.param(3, ZERO_2, TO_OWN, id="zero 2", marks=pytest.mark.slow),
    ],
)
def test_writes_are_kept(ranks, options, ways):
    """Those to a module's own parameters, and those to a network that follows another one."""
    script = SCRIPTS / "writes.py"
    found = fork_script(script, ranks, json.dumps(options), *ways, timeout_s=150).json()
    assert set(found) == set(ways)
    assert all(difference < 1e-12 for difference in found.values()), found


@pytest.mark.slow
def test_gathered_in_fewer_bits():
    """A parameter that is only looked at keeps all its bits."""
    assert fork_script(SCRIPTS / "writes_rounded.py", timeout_s=115).json() == 0.0


@pytest.mark.slow
def test_writes_that_depend_on_the_samples_are_refused():
    result = fork_script(SCRIPTS / "writes_unlike.py", timeout_s=115).ok(1)
    words = "RanksDiverged: a forward writes different values to a parameter on each rank"
    assert words in result.stderr, result.stderr
