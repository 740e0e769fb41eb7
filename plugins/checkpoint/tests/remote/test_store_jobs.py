"""Two jobs at one store, and what is told of it: refused, followed, and without a password."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
from torchbus import session

from torchbus_checkpoint import locks
from torchbus_checkpoint.disk import folder
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.locks import Owner
from torchbus_checkpoint.remote import store as url
from torchbus_checkpoint.remote.store import Store

from .store_runs import train

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_a_second_job_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE_S", 0.0)
    alive = replace(Owner.here(), pid=os.getppid(), began="")
    Store(place).write(locks.NOTE, alive.note())
    with (
        pytest.raises(
            CheckpointError,
            match=f"another job writes its checkpoints to {place}: process {alive.pid} on",
        ),
        session(checkpoint=place),
    ):
        pass
    assert Store(place).read(locks.NOTE) == alive.note() and not folder.found(
        url.local_folder(place)
    )


def test_a_dead_job_is_followed_at_once(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    Store(place).write(locks.NOTE, replace(Owner.here(), began="another one").note())
    with session(checkpoint=place) as s:
        train(s, 2)
    assert capfd.readouterr().err == ""
    Store(place).write(locks.NOTE, Owner("far", 7, "2026-01-01 00:00:00 +0000").note())
    with session(checkpoint=place) as s:
        train(s, 3)
    assert (
        "was process 7 on 'far', since 2026-01-01 00:00:00 +0000, which did not record its end"
        in capfd.readouterr().err
    )


def test_a_job_that_another_host_follows_gives_way(place: str) -> None:
    other = Owner("far", 7, "2026-01-01 00:00:00 +0000").note()

    def at(step: int) -> None:
        if step == 2:
            Store(place).write(locks.NOTE, other)
        time.sleep(0.05 * (step > 2))

    words = "another job now writes .*: process 7 on 'far'.* This job stops"
    with (
        pytest.raises(CheckpointError, match=words),
        session(checkpoint=place, every_n_steps=1) as s,
    ):
        train(s, 500, at)
    assert Store(place).read(locks.NOTE) == other
