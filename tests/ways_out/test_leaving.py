"""However a session is left, every rank leaves, torch is as it was, and the job's exit status is
right.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import pytest
from leaving_ways import (
    SCRIPT,
    WAYS,
    WITHIN_S,
    check_finally,
    raised,
    status,
)
from pairs import covering, mixed

from torchbus_testing.processes import stretched
from torchbus_testing.scripts import Result, run

CASES = [(who, how) for how in WAYS for who in (0, 1)]
ROW = [case for case in CASES if case != (0, "SIGKILL")]


def check_folder(folder: Path, ranks: int, who: int, how: str) -> None:
    """Rank 0 alone went on after the block if anybody, and torch is as it was."""
    check_finally(folder, ranks, who, how)
    goes_on = raised(who, how) is None and how != "SIGKILL"
    assert (folder / "after").exists() == goes_on
    if goes_on:
        assert (folder / "after").read_text() == "0\n"
    if (who, how) != (0, "SIGKILL"):
        assert (folder / "state").read_text() == ""


def check_words(result: Result, who: int, how: str) -> None:
    """The failure is told once: with its own traceback, first, and labelled if it is another
    rank's.
    """
    lines = result.stderr.splitlines(keepends=True)
    text = "".join(
        one for one in lines if not one.startswith("torchbus: rank 0 ended its loop before")
    )
    error = raised(who, how)
    for noise in (
        "Exception ignored",
        "Exception in thread",
        "terminate called",
        "Warning",
        "leaked",
    ):
        assert noise not in text, text
    if error is None or error.startswith("SystemExit"):
        assert text == ("boom\n" if how == "exit boom" else ""), text
        return
    kind = error.partition(":")[0]
    assert text.count(error) == 1, text
    assert (f"torchbus.errors.{error}" if "Rank" in kind else error) in text.rstrip().splitlines()[
        -1
    ], text
    own = "".join(line + "\n" for line in text.splitlines() if line.startswith("[rank "))
    if kind == "RankFailed" and how.startswith(("raise", "exit")):
        assert own.count(
            f"[rank {who}] Traceback (most recent call last):"
        ) == 1 and text.startswith(own), text
        assert own.endswith(f"[rank {who}] {error.partition('first: ')[2]}\n"), text
    else:
        assert own == "", text
    assert sum(line.startswith("Traceback") for line in text.splitlines()) == 1, text


def leave(folder: Path, launch: str, ranks: int, who: int, how: str) -> None:
    own = folder / "temporary"  # for what a job puts into the system's one
    own.mkdir()
    result = run(
        [sys.executable, str(SCRIPT), str(folder), launch, str(ranks), str(who), how],
        env={"TMPDIR": str(own)},
    )
    # its cache; 2.4 has a folder while it runs
    torchs = ("torchinductor_", "tmp") if how == "SIGKILL" else ("torchinductor_",)
    assert [path.name for path in own.iterdir() if not path.name.startswith(torchs)] == []
    elapsed_s = time.time() - (folder / "left").stat().st_mtime
    # pytest -s shows the matrix
    print(
        f"{launch}, {ranks} ranks, rank {who}: {how}: {elapsed_s:.1f} s, exit status {result.status}"
    )
    assert result.ok(status(who, how))
    assert elapsed_s < stretched(WITHIN_S)
    check_folder(folder, ranks, who, how)
    if (who, how) != (0, "SIGKILL"):
        check_words(result, who, how)


OFTEN = [
    ("script", 0, "SIGINT"),
    ("fork", 0, "SIGTERM in backward others sleep"),
    ("fork", 1, "break"),
]
PAIRS = covering(mixed(itertools.product(("script", "fork", "spawn"), (0, 1), WAYS)), OFTEN)


@pytest.mark.parametrize(
    ("launch", "who", "how"),
    [*OFTEN, *(pytest.param(*case, marks=pytest.mark.slow) for case in PAIRS)],
)
def test_two_ranks(tmp_path, launch, who, how):
    leave(tmp_path, launch, 2, who, how)


@pytest.mark.parametrize("launch", [pytest.param("script", marks=pytest.mark.slow), "fork"])
@pytest.mark.parametrize(
    ("who", "how"), [(2, "raise"), pytest.param(2, "SIGKILL", marks=pytest.mark.slow)]
)
def test_three_ranks(tmp_path, launch, who, how):
    leave(tmp_path, launch, 3, who, how)


@pytest.fixture(scope="module")
def row(tmp_path_factory) -> Path:
    """Every way, one after the other in one process, forked each time."""
    folder = tmp_path_factory.mktemp("row")
    words = [word for who, how in ROW for word in (str(who), how)]
    result = run([sys.executable, str(SCRIPT), str(folder), "fork", "2", *words], timeout_s=280)
    assert result.ok()
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("who", "how"), ROW)
def test_in_a_row(row, who, how):
    folder = row / str(ROW.index((who, how)))
    check_folder(folder, 2, who, how)
    assert (folder / "error").read_text().startswith(raised(who, how) or "NoneType: None")
