"""Signals, a call and the clock: saved at the next step boundary, and an exit status that
schedulers start a job again for.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchbus import session
from torchbus.errors import UsageError

from torchbus_checkpoint.disk import folder
from torchbus_checkpoint.requests import seconds

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = pytest.mark.timeout(900)

LOOP = SCRIPTS / "leaving_by_signal.py"


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("ranks", "asked", "whom"),
    [
        (1, signal.SIGTERM, 0),
        pytest.param(2, signal.SIGUSR1, 0, marks=pytest.mark.slow),
        (2, signal.SIGTERM, 1),
        pytest.param(2, "call", 0, marks=pytest.mark.slow),
        (2, "call", 1),
    ],
)
def test_a_signal(run: Any, tmp_path: Path, ranks: int, asked: int | str, whom: int) -> None:
    number = signal.SIGUSR1 if asked == "call" else int(asked)
    whole = run(LOOP, ranks, 0, 0, folder=tmp_path / "whole").ok()
    left = run(LOOP, ranks, "call" if asked == "call" else number, whom, folder=tmp_path / "left")
    assert left.status == 128 + number, left.stderr
    assert (
        f"as asked, and leaving with exit status {128 + number}" in left.stderr
        and "Traceback" not in left.stderr
    )
    assert len(folder.found(tmp_path / "left" / "checkpoints")) == 1
    assert run(LOOP, ranks, 0, 0, folder=tmp_path / "left").ok().stdout == whole.stdout


def steps(s: Any) -> None:
    for _ in trained_steps(s):
        pass


def trained_steps(s: Any) -> Iterator[int]:
    """Train for 50 steps, and yield the number of each that is done."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in s.epochs(50):
        model(torch.ones(1)).backward()
        optimizer.step()
        yield step


def test_the_clock(tmp_path: Path) -> None:
    with (
        pytest.raises(SystemExit) as error,
        session(checkpoint=tmp_path, every_n_steps=100, time_limit=timedelta(microseconds=1)) as s,
    ):
        steps(s)
    assert error.value.code == 128 + signal.SIGUSR1
    # before the first step already
    assert [one.name for one in folder.found(tmp_path)] == ["step-00000000"]


def test_a_session_outside_the_main_thread(tmp_path: Path) -> None:
    """It can't hear signals, and says so; a call from anywhere is another way."""
    before, told, left = signal.getsignal(signal.SIGTERM), [], []

    def train() -> None:
        with session(checkpoint=tmp_path, every_n_steps=100) as s:
            told.append(s.explain())
            for step in trained_steps(s):
                if step == 2:
                    running.append(s)
                    asked.wait(60)

    def leaves() -> None:
        try:
            train()
        except SystemExit as error:
            left.append(error.code)

    running: list[Any] = []
    asked = threading.Event()
    thread = threading.Thread(target=leaves)
    thread.start()
    while not running:
        thread.join(0.01)
        assert thread.is_alive()
    assert signal.getsignal(signal.SIGTERM) is before
    running[0].save_and_leave()
    running[0].save_and_leave()  # asking again changes nothing
    asked.set()
    thread.join(60)
    assert left == [128 + signal.SIGUSR1] and "SIGTERM and SIGUSR1 are not handled" in told[0]
    assert [one.name for one in folder.found(tmp_path)] == ["step-00000003"]


def test_in_the_main_thread_signals_are_heard(tmp_path: Path) -> None:
    with session(checkpoint=tmp_path) as s:
        assert "not handled" not in s.explain()


def test_leaving_needs_a_folder() -> None:
    words = "needs checkpoint=..., the folder that it saves to"
    with pytest.raises(UsageError, match=words), session("checkpoint") as s:
        s.save_and_leave()


def test_minutes(tmp_path: Path) -> None:
    with session(checkpoint=tmp_path, every_minutes=1e-9, keep=None) as s:
        steps(s)
    assert len(folder.found(tmp_path)) == 50


def test_a_second_signal_is_obeyed_at_once(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as error, session(checkpoint=tmp_path):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert error.value.code == 143 and signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30:00", 1800), ("1:30:00", 5400), ("1-00:00:00", 86400), (timedelta(hours=1), 3600)],
)
def test_time_limits(text: Any, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "90", "1-12:00", "x", 90])
def test_bad_time_limits(text: Any) -> None:
    with pytest.raises(UsageError, match="a timedelta, or a string"):
        seconds(text)


def test_a_time_limit_of_61_minutes() -> None:
    with pytest.raises(UsageError, match="time_limit='11:61:00': it has 61 minutes"):
        seconds("11:61:00")
