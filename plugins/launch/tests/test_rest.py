"""What is evidence, and what is only time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchbus_launch import failure, stall
from torchbus_launch.broadcast_log import FairClock, Looking
from torchbus_launch.hang import HangWatch, report
from torchbus_launch.rank_position import BLIND, RankPosition, find

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no notes")
def test_the_summary_of_a_failure_is_its_error_not_its_notes() -> None:
    error = ValueError("boom")
    error.add_note("two\nlines")  # type: ignore[attr-defined]
    found = failure.of(1, error)
    assert found.summary == "ValueError: boom" and found.traceback.endswith("two\nlines\n")


linux = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs /proc")


def test_a_fair_clock_leaves_out_what_its_own_process_has_missed():
    clock = FairClock(step_s=0.1)
    time.sleep(0.5)  # as if stopped
    assert 0 < clock.seconds() <= 0.1


@linux
def test_a_fair_clock_leaves_out_the_wait_for_a_processor(tmp_path):
    (tmp_path / "schedstat").write_text("0 0 0")
    clock = FairClock(1.0, str(tmp_path))
    (tmp_path / "schedstat").write_text(f"0 {10**12} 0")
    time.sleep(0.05)
    assert clock.seconds() == 0.0


def test_a_rank_is_placed_after_its_working_directory_was_removed(tmp_path, monkeypatch):
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    place = find(0, None, 0, threading.get_ident())
    assert place.line.startswith(f"{__file__}:")


IDLE = SCRIPTS / "idle.py"


@linux
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("idle", "True True True 1"),
        ("unread", "False False False 1"),
        ("busy", "False False False 1"),
        ("woken", "True True True True 2"),
    ],
)
def test_a_process_rests_while_nothing_runs_and_nothing_is_unread(how, told):
    result = subprocess.run(
        [sys.executable, str(IDLE), how],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.stdout.strip() == told, result.stderr


@linux
def test_the_store_is_asked_all_the_time():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        accepted, _ = server.accept()
        with accepted:
            client.send(b"x")
            time.sleep(0.1)
            port = server.getsockname()[1]
            assert stall._carries_something(accepted.fileno(), 0) and not stall._carries_something(
                accepted.fileno(), port
            )


def place(rank: int, waits_in: str, mark: str) -> RankPosition:
    return RankPosition(rank, waits_in, "train.py:1", "", 3, "", mark)


@pytest.mark.parametrize(
    ("marks", "diverged"),
    [
        ((("a", "b"), ("a", "b")), True),
        ((("a", "b"), ("a", "c")), False),
        ((("a", ""), ("a", "")), False),
    ],
)
def test_ranks_in_different_places_have_diverged_once_both_rest(marks, diverged):
    watch = HangWatch(None, None, 0, 2, 60.0, lambda: place(0, "", ""))  # type: ignore[arg-type]
    found = [
        watch._deadlock([place(0, "backward 4", one), place(1, "s.barrier", other)])
        for one, other in marks
    ]
    assert found[0] is None and (found[1] is not None) == diverged


@pytest.mark.parametrize(
    ("mark", "waited_s", "every_s"),
    [("a", 2.0, 1.5), ("", 2.0, 1.5), (BLIND, 2.0, 5.0), ("a", 60.0, 5.0)],
)
def test_looks_are_close_where_ranks_show_that_they_rest(mark, waited_s, every_s):
    """An accelerator shows nothing of its work, and a long wait is more than a moment's."""
    log = SimpleNamespace(all=lambda kind: [], has=lambda item: False)
    watch = HangWatch(None, log, 0, 2, 60.0, lambda: place(0, "", ""))  # type: ignore[arg-type]
    watch._deadlock([place(0, "backward 4", mark), place(1, "s.barrier", mark)])
    assert watch._every_s(waited_s) == every_s


def test_ranks_in_one_slow_call_do_not_depend_on_the_rank():
    told = report([place(0, "s.barrier", ""), place(1, "s.barrier", "")], 2, 60.0)
    assert "none is missing: all are in the same call" in told and "depends on the rank" not in told
    assert "depends on the rank" in report(
        [place(0, "s.barrier", ""), place(1, "backward 3", "")], 2, 60.0
    )


def test_a_look_that_does_not_come_back_is_noticed():
    let_go = threading.Event()
    looking = Looking(lambda: let_go.wait() and None, 0.01)
    looking.start()
    deadline = time.monotonic() + 30
    while looking.away_s() < 0.3 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert looking.away_s() >= 0.3
    let_go.set()
    looking.stop()
    assert looking.away_s() == 0.0
