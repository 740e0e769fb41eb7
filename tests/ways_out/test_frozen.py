"""A rank that does not move any more is named and ends the job, by whoever still lives; one that is
only slow is left alone.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from torchbus_testing.scripts import Result, run

SCRIPT = Path(__file__).parent / "scripts" / "frozen.py"
LIMIT_S = 3.0
LIFE = "no sign of life for 3 s (freeze_timeout): its process "
SILENT = {  # how its guard comes to be silent, and what is said of its process
    "SIGSTOP": "is stopped by a signal",
    "SIGSTOP with a child": "is stopped by a signal",
    "lock": "is in native code that holds Python's lock",
}
WAITS = {  # whose guard lives: it ends by itself, and says
    "file": "it waits for an answer of the file {folder}/dead mount, for 3 s (freeze_timeout)",
    "worker stopped": "of its DataLoader is stopped by a signal, for 3 s (freeze_timeout)",
    "worker's file": "of its DataLoader waits for an answer of the file {folder}/dead mount, for 3 s (freeze_timeout)",
}
OFTEN = {("fork", 1, "SIGSTOP"), ("script", 0, "lock"), ("fork", 1, "worker stopped")}
CASES = [
    (launch, who, how)
    for launch in ("fork", "script")
    for how in (*SILENT, *WAITS)
    for who in (0, 1)
]


def freeze(
    folder: Path,
    launch: str,
    ranks: int,
    who: int,
    how: str,
    before: list[str],
    seconds: float = LIMIT_S,
) -> Result:
    os.mkfifo(folder / "dead mount")
    return run(
        [
            *before,
            sys.executable,
            str(SCRIPT),
            launch,
            str(ranks),
            str(who),
            how,
            str(seconds),
            str(folder),
        ],
        timeout_s=100,
    )


def check(result: Result, folder: Path, ranks: int, who: int, how: str) -> None:
    """Rank 0 of a session's own launch tells the end; where it is the frozen one, others write to
    its stderr before they end it.
    """
    killed = how in SILENT and who == 0
    assert result.ok(-signal.SIGKILL if killed else 1) and "done" not in result.stdout
    assert {path.name for path in folder.glob("finally*")} == {
        f"finally{rank}" for rank in range(ranks) if rank != who or how in WAITS
    }
    last = result.stderr.splitlines()[-1]
    begins = (
        "torchbus: rank 0 is ended by rank "
        if killed
        else f"torchbus.errors.RankFailed: rank {who} failed first: "
    )
    assert last.startswith(begins), result.stderr
    if how in WAITS:
        assert WAITS[how].format(folder=folder) in last, result.stderr
    else:
        assert SILENT[how] in last and (
            LIFE in last
            or "rank 0 (or torchrun), which serves the store, has not answered for" in last
        ), result.stderr


@pytest.mark.share(2)
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("launch", "who", "how"),
    [pytest.param(*case, marks=[] if case in OFTEN else pytest.mark.slow) for case in CASES],
)
def test_a_frozen_rank_ends_the_job(tmp_path, launch, who, how):
    result = freeze(tmp_path, launch, 2, who, how, [])
    check(result, tmp_path, 2, who, how)
    store_stopped = who == 0 and how.startswith("SIGSTOP")
    silent = "torchbus: rank 0 (or torchrun), which serves the store, has not answered for 2 s"
    named = silent if store_stopped else "torchbus: ranks have waited 2 s for others:"
    assert named in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("who", "how"), [("2", "lock"), ("0,2", "SIGSTOP"), ("1,2", "SIGSTOP"), ("0,1", "lock")]
)
def test_of_three_ranks_one_or_two(tmp_path, who, how):
    """One that lives is enough to end all."""
    result = freeze(tmp_path, "fork", 3, who, how, [])
    assert result.status in (1, -signal.SIGKILL) and not result.orphans, result
    assert SILENT[how] in result.stderr
    assert {path.name for path in tmp_path.glob("finally*")} == {
        f"finally{rank}" for rank in range(3) if str(rank) not in who
    }


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("who", "how"), [(0, "SIGSTOP"), (1, "SIGSTOP"), (0, "lock"), (1, "worker stopped")]
)
def test_under_torchrun(tmp_path, who, how):
    """Its agent serves the store, and tells of a rank that was killed in its own words."""
    os.mkfifo(tmp_path / "dead mount")
    words = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(SCRIPT),
        "any",
        "2",
        str(who),
        how,
        "3",
        str(tmp_path),
    ]
    result = run([sys.executable, *words], timeout_s=100)
    assert result.status == 1 and not result.orphans, result
    # the agent may end the other rank, which ended this one, before that can say who failed first
    named = f"rank {who} failed first: ", f"rank {who} is ended by rank {1 - who}: "
    assert any(words in result.stderr for words in named)
    assert {**SILENT, **WAITS}[how] in result.stderr


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "living",
    [
        pytest.param("sleep,pipe,native", marks=pytest.mark.slow),
        pytest.param("subprocess,python", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_slow_but_lives_is_left_alone(tmp_path, living):
    """It sleeps, waits for another process, or for a pipe, or computes in Python or outside of it,
    each time for longer than ``freeze_timeout``.
    """
    result = freeze(tmp_path, "fork", 2, 1, living, [], seconds=2.0)
    assert result.ok() and result.stdout == "done\n" and "freeze" not in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("launch", ["fork", "script"])
def test_neither_a_prompt_nor_slow_workers_are_frozen(tmp_path, launch):
    os.mkfifo(tmp_path / "dead mount")
    words = [sys.executable, str(SCRIPT), launch, "2", "0", "input,slow worker", "2", str(tmp_path)]
    result = run(["bash", "-c", f"(sleep 25; echo yes) | {shlex.join(words)}"], timeout_s=100)
    assert result.ok() and result.stdout == "done\n" and "freeze" not in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_all_ranks_frozen_at_once_go_on(tmp_path):
    """A container that is paused, a laptop that sleeps, Ctrl-Z: nobody has waited for anybody."""
    result = freeze(tmp_path, "fork", 2, -1, "all stopped", [], seconds=2.0)
    assert result.ok() and result.stdout == "done\n" and "freeze" not in result.stderr
