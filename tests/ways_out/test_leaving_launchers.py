"""A rank that leaves under torchbus run and under torchrun."""

from __future__ import annotations

import sys
import time

import pytest
from leaving_ways import (
    SCRIPT,
    WITHIN_S,
    check_finally,
    status,
)

from torchbus_testing.processes import stretched
from torchbus_testing.scripts import run

IN_A_COMMAND = [
    (1, "raise others sleep"),
    (0, "raise"),
    (1, "exit 3"),
    (0, "SIGINT"),
    (1, "SIGTERM"),
    (1, "SIGKILL"),
    (0, "SIGKILL"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("who", "how"), IN_A_COMMAND)
def test_under_torchbus_run(tmp_path, who, how):
    words = [
        "-m",
        "torchbus",
        "run",
        "--devices",
        "2",
        "--accelerator",
        "cpu",
        str(SCRIPT),
        str(tmp_path),
        "command",
        "2",
        str(who),
        how,
    ]
    result = run([sys.executable, *words])
    elapsed_s = time.time() - (tmp_path / "left").stat().st_mtime
    assert result.ok(status(who, how))
    assert elapsed_s < stretched(WITHIN_S)
    check_finally(tmp_path, 2, who, how)


UNDER_TORCHRUN = {
    (0, "raise"): "ValueError: boom",
    (1, "raise others sleep"): "ValueError: boom",
    (1, "SIGKILL"): "Signal 9 (SIGKILL)",
    (0, "exit 3"): "exitcode  : 3",  # torchrun may end rank 1 before it has said so
    (1, "uneven"): "ended its loop after",
}


@pytest.mark.parametrize(
    ("who", "how"),
    [
        pytest.param(*case, marks=pytest.mark.slow if number else [])
        for number, case in enumerate(UNDER_TORCHRUN)
    ],
)
def test_under_torchrun(tmp_path, who, how):
    """torchrun's own words and status are its own; ours are that every rank leaves, and which one
    failed. Its traceback comes first, and torchrun names it.
    """
    result = run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            str(SCRIPT),
            str(tmp_path),
            "script",
            "2",
            str(who),
            how,
        ]
    )
    elapsed_s = time.time() - (tmp_path / "left").stat().st_mtime
    assert result.status == 1 and not result.orphans
    assert elapsed_s < stretched(WITHIN_S)
    left = {0, 1} - ({who} if how == "SIGKILL" else set())
    assert {path.name for path in tmp_path.glob("finally*")} == {f"finally{rank}" for rank in left}
    assert UNDER_TORCHRUN[who, how] in result.stderr
    if how == "raise":
        errors = [line for line in result.stderr.splitlines() if "Error: boom" in line]
        assert errors[0] == "ValueError: boom"
        assert f"local_rank: {who} " in result.stderr
