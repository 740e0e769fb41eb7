"""fsdp: what a loop reads from divided tensors, writes into them and draws for them is what it is
in one process.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "as_whole.py"


@pytest.fixture(scope="module")
def found():
    return fork_script(SCRIPT, timeout_s=110).json()


READS = ["numpy", "numpy of a sum", "numpy of a list", "tolist", "format", "deepcopy"]
WRITES = [
    "data, parts",
    "data, whole",
    "data, back again",
    "indices",
    "rows",
    "named views",
    "init",
    "noise",
    "mask",
]


@pytest.mark.parametrize("way", [*READS, *WRITES])
def test_as_in_one_process(found, way):
    alone, *ranks = found[way]
    assert ranks[0] == ranks[1] and len(alone) == len(ranks[0])
    assert max(abs(ours - other) for ours, other in zip(ranks[0], alone, strict=True)) < 1e-9


def test_what_would_be_lost_is_an_error(found):
    assert "read-only" in found["written into an array"]
    assert (
        "values of shape (3, 2) and torch.float64 for a parameter of shape (2, 2)"
        in found["another shape"]
    )


def test_nothing_is_left_behind(found):
    assert found["left"] == []
