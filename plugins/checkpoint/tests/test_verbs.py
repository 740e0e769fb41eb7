"""``s.register``, ``s.save`` and ``s.load``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.errors import UsageError

from torchbus_checkpoint.disk import folder
from torchbus_checkpoint.disk.choice import best
from torchbus_checkpoint.errors import CheckpointError
from torchbus_testing.recorder import RecordingLogger

from .cut_training import DATA, Alone, Clock, Cut, make, seed, step


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def registered(s: Any, clock: Clock, save_at: int = -1, path: Any = None, load: Any = None) -> Any:
    model, optimizer = make()
    counter = s.register("counter", Counter())
    if load is not None:
        s.load(load)
    for epoch in s.epochs(3):  # noqa: B007
        for (x,) in DataLoader(DATA, batch_size=4, shuffle=True):
            counter.value += 1
            step(model, optimizer, x * counter.value)
            if counter.value == save_at:
                s.save(path)
            clock()
    return [*model.parameters(), epoch]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_save_and_load_by_hand(tmp_path: Path, asynchronous: bool) -> None:
    seed()
    *whole, _ = registered(Alone(), Clock())
    seed()
    with pytest.raises(Cut), session(async_save=asynchronous) as s:
        registered(s, Clock(10), 9, tmp_path / "mine")
    seed(99)
    with session("checkpoint") as s:
        *resumed, epoch = registered(s, Clock(), load=tmp_path / "mine")
    assert epoch == 2 and all(map(torch.equal, resumed, whole))
    assert [one.name for one in folder.found(tmp_path)] == ["mine"]


def test_load_in_mid_course_puts_back_states(tmp_path: Path) -> None:
    with session("checkpoint") as s:
        model, optimizer = make()
        step(model, optimizer, DATA.tensors[0])
        s.save(tmp_path / "one")
        there = [parameter.clone() for parameter in model.parameters()]
        step(model, optimizer, DATA.tensors[0])
        s.load(tmp_path / "one")
        assert all(map(torch.equal, model.parameters(), there))
        step(model, optimizer, DATA.tensors[0])


def test_a_best_checkpoint_that_does_not_exist(tmp_path: Path) -> None:
    words = r"s.load\(None\): .* best\(folder\) returns None if"
    with pytest.raises(UsageError, match=words), session(checkpoint=tmp_path) as s:
        s.load(best(tmp_path))


def test_registered_objects_must_be_the_same(tmp_path: Path) -> None:
    with session("checkpoint") as s:
        s.register("a", Counter())
        s.save(tmp_path / "one")
    with (
        pytest.raises(
            CheckpointError, match="the checkpoint has a registered 'a', this loop has not"
        ),
        session("checkpoint") as s,
    ):
        s.load(tmp_path / "one")


@pytest.mark.parametrize(
    ("thing", "words"), [(3, "needs the methods"), (Counter(), "registered already")]
)
def test_what_can_be_registered(thing: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words), session("checkpoint") as s:
        s.register("a", Counter())
        s.register("a", thing)


@pytest.mark.parametrize("early", [False, True])
def test_what_is_led_through_again_is_logged_once(tmp_path: Path, early: bool) -> None:
    """Whether the loop has logged something before ``s.load`` or not."""

    def steps_logged(epochs: int, loads: bool) -> list[int]:
        hears = RecordingLogger()
        with session("checkpoint", logger=hears, autolog=False, log_every_n_steps=1) as s:
            model = torch.nn.Linear(1, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loader = DataLoader(torch.ones(4, 1), batch_size=2)
            if early:
                s.log("parameters", 2.0)
            if loads:
                s.load(tmp_path / "kept")
            for epoch in s.epochs(epochs):
                for x in loader:
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()
                s.log("epoch", float(epoch), step=epoch)
                if epoch == 1 and not loads:
                    s.save(tmp_path / "kept")
        return [step for step, _ in hears.of("epoch")]

    assert steps_logged(3, loads=False) == [0, 1, 2]
    assert steps_logged(5, loads=True) == [2, 3, 4]
