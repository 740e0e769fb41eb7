"""What dp divides, what it leaves common to the ranks, and what it says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

HEAD = (SCRIPTS / "dp_head.py").read_text()

MORE = SCRIPTS / "dp_more.py"


@pytest.fixture(scope="module")
def more() -> dict[str, Any]:
    return dict(fork_script(MORE, timeout_s=110).json())


@pytest.mark.parametrize(
    "fact",
    [
        "rows that forward has flattened, and sizes that look like it",
        "dropout is drawn by each rank",
        "all ranks have all outputs",
        "random numbers of the loop are common",
        "s.shard gives the whole batch",
        "batch_dim",
        "16 bits",
    ],
)
def test_what_holds(fact, more):
    assert more[fact]


def test_explain_says_what_is_done(more):
    text = " ".join(more["explain"].split())
    assert "dp over gloo: every rank has the whole batch" in text
    assert (
        "flat: Flat, 28 parameters in 2 tensors: each outermost forward is divided over 2 ranks along dim 0"
        in text
    )
