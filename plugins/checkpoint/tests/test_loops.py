"""Loops of many kinds, interrupted by an exception at every few steps and begun again: the end is that of the loop alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchbus import session
from torchbus.errors import UsageError
from torchbus.testing import assert_torch_unchanged, torch_state

from torchbus_checkpoint import CheckpointError, folder

pytestmark = pytest.mark.timeout(900)
DATA = TensorDataset(torch.randn(22, 3, generator=torch.Generator().manual_seed(7)))


class Alone:
    """What a loop finds for ``s`` without torchbus."""

    def __getattr__(self, name: str) -> Any:
        return {"epochs": range, "register": lambda name, thing: thing, "log": lambda *values: None}[name]


class Cut(Exception):
    pass


class Clock:
    """Cuts the loop after so many steps. Its count is nothing that a checkpoint holds."""

    def __init__(self, cut: int = -1) -> None:
        self._cut = cut
        self._count = itertools.count(1)

    def __call__(self) -> None:
        if next(self._count) == self._cut:
            raise Cut


Loop = Callable[[Any, Clock], Any]


def make(dropout: float = 0.5) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(dropout), nn.Linear(5, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> float:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def manual_accumulation(s: Any, clock: Clock) -> Any:
    model, optimizer = make()
    for epoch in range(2):
        for i, (x,) in enumerate(DataLoader(DATA, batch_size=2, shuffle=True)):
            (model(x).square().mean() / (3 + epoch)).backward()
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
            clock()
    return [*model.parameters()]


def plateau_of_a_running_loss(s: Any, clock: Clock) -> Any:
    """The loop's own variables decide: a running loss, a best value, a patience."""
    model, optimizer = make()
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    loader = DataLoader(DATA, batch_size=5, shuffle=True)
    best, history = float("inf"), []
    for _ in s.epochs(4):
        running = 0.0
        for i, (x,) in enumerate(loader):  # noqa: B007
            running += step(model, optimizer, x) * (2 if running > best else 1)
            clock()
        scheduler.step(running / (i + 1))
        best = min(best, running)
        history.append(running)
    return [*model.parameters(), torch.tensor([best, optimizer.param_groups[0]["lr"], *history])]


def two_optimizers(s: Any, clock: Clock) -> Any:
    """A GAN's five to one, with noise of its own generator."""
    (generator, g_optimizer), (critic, c_optimizer) = make(), make()
    noise = torch.Generator().manual_seed(5)
    loader = DataLoader(DATA, batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(1))
    for _ in s.epochs(3):
        for i, (x,) in enumerate(loader):
            fake = generator(torch.randn(len(x), 3, generator=noise)) * x
            c_optimizer.zero_grad()
            (critic(fake.detach()).mean() - critic(x).mean()).backward()
            c_optimizer.step()
            if i % 5 == 4:
                g_optimizer.zero_grad()
                (-critic(fake).mean()).backward()
                g_optimizer.step()
            clock()
    return [*generator.parameters(), *critic.parameters()]


def endless_batches(s: Any, clock: Clock) -> Any:
    model, optimizer = make()

    def batches() -> Any:
        loader = DataLoader(DATA, batch_size=4, shuffle=True)
        while True:
            yield from loader

    for number, (x,) in enumerate(batches()):
        step(model, optimizer, x * (1 + number))
        clock()
        if number == 14:
            return [*model.parameters()]


def own_counter(s: Any, clock: Clock) -> Any:
    model, optimizer = make()
    loader = DataLoader(DATA, batch_size=4, shuffle=True)
    num_steps = 0
    while num_steps < 14:
        for (x,) in loader:
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (1 + num_steps)
            step(model, optimizer, x)
            num_steps += 1
            clock()
            if num_steps == 14:
                break
    return [*model.parameters()]


def steps_of_an_iterator(s: Any, clock: Clock) -> Any:
    model, optimizer = make()
    batches = iter(DataLoader(DATA, batch_size=1, shuffle=True))
    for number in s.epochs(20):
        (x,) = next(batches)
        step(model, optimizer, x * (1 + number))
        clock()
    return [*model.parameters()]


def without_loaders(s: Any, clock: Clock) -> Any:
    model, optimizer = make()
    for _ in s.epochs(10):
        index = random.sample(range(22), 4)
        step(model, optimizer, DATA.tensors[0][index] + torch.randn(4, 3))
        clock()
    return [*model.parameters()]


def zipped(s: Any, clock: Clock) -> Any:
    model, optimizer = make()
    one, other = DataLoader(DATA, batch_size=3, shuffle=True), DataLoader(DATA, batch_size=4, shuffle=True)
    for _ in range(3):
        for (x,), (y,) in zip(one, other, strict=False):
            step(model, optimizer, torch.cat([x, y]))
            clock()
    return [*model.parameters()]


def frozen_then_thawed(s: Any, clock: Clock) -> Any:
    """Statistics over the data before the first step; a layer that is frozen at first; an average of the weights; a log that is kept."""
    model, optimizer = make()
    loader = DataLoader(DATA, batch_size=4, shuffle=True)
    mean = torch.cat([x for (x,) in loader]).mean(0)
    average = torch.optim.swa_utils.AveragedModel(model)
    model[0].requires_grad_(False)
    for epoch in s.epochs(4):
        if epoch == 2:
            model[0].requires_grad_(True)
        for (x,) in loader:
            step(model, optimizer, x - mean)
            average.update_parameters(model)
            clock()
    return [*model.parameters(), *average.parameters()]


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(torch.arange(60.0).reshape(20, 3) / 60)


def streamed(s: Any, clock: Clock) -> Any:
    model, optimizer = make()
    for _ in range(3):
        for x in DataLoader(Stream(), batch_size=3):
            step(model, optimizer, x)
            clock()
    return [*model.parameters()]


class Trainer:
    """Its own class, with a counter."""

    def __init__(self) -> None:
        self.model, self.optimizer = make()
        self.num_steps, self.losses = 0, []

    def fit(self, clock: Clock) -> None:
        loader = DataLoader(DATA, batch_size=5, shuffle=True)
        for _ in range(3):
            self.train_epoch(loader, clock)

    def train_epoch(self, loader: Any, clock: Clock) -> None:
        self.model.train()
        for (x,) in loader:
            self.num_steps += 1
            self.losses.append(step(self.model, self.optimizer, x * self.num_steps))
            clock()


def own_class(s: Any, clock: Clock) -> Any:
    trainer = Trainer()
    trainer.fit(clock)
    return [*trainer.model.parameters(), torch.tensor(trainer.losses)]


LOOPS = [manual_accumulation, plateau_of_a_running_loss, two_optimizers, endless_batches, own_counter, steps_of_an_iterator, without_loaders, zipped,
         frozen_then_thawed, streamed, own_class]  # fmt: skip


@pytest.mark.parametrize(
    "loop", [pytest.param(loop, id=loop.__name__, marks=pytest.mark.slow if number % 4 else []) for number, loop in enumerate(LOOPS)]
)
def test_the_end_is_that_of_the_loop_alone(loop: Loop, tmp_path: Path) -> None:
    before = torch_state()
    seed()
    whole = loop(Alone(), Clock())
    for cut in itertools.count(1, 4):
        if not interrupt(loop, cut, tmp_path / str(cut)):
            break
        seed(12345 if folder.found(tmp_path / str(cut)) else 0)
        with session(checkpoint=tmp_path / str(cut), every_n_steps=2) as s:
            resumed = loop(s, Clock())
        assert [torch.equal(a, b) for a, b in zip(resumed, whole, strict=True)] == [True] * len(whole), f"cut after {cut}"
    assert cut > 9
    assert_torch_unchanged(before)


def seed(number: int = 0) -> None:
    torch.manual_seed(number)
    random.seed(number)


def interrupt(loop: Loop, cut: int, place: Path) -> bool:
    """False if the loop was over before."""
    seed()
    try:
        with session(checkpoint=place, every_n_steps=2) as s:
            loop(s, Clock(cut))
    except Cut:
        return True
    return False


# Refused -----------------------------------------------------------------------------------------------------------


def test_a_position_that_a_range_hides_is_refused_at_the_first_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"for number in s.epochs\(...\)"), session(checkpoint=tmp_path, every_n_steps=3):
        model, optimizer = make()
        batches = iter(DataLoader(DATA, batch_size=1))
        for number in range(10):
            step(model, optimizer, next(batches)[0] + number)


def test_a_loop_that_nobody_can_follow_is_refused_at_its_first_step(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no batch from a DataLoader.*for step in s.epochs"), session(checkpoint=tmp_path):
        model, optimizer = make()
        for _ in range(3):
            step(model, optimizer, torch.randn(2, 3))


def test_steps_outside_of_loaders_are_refused_on_the_way_back(tmp_path: Path) -> None:
    def loop(clock: Clock) -> None:
        model, optimizer = make()
        for _ in range(3):
            for (x,) in DataLoader(DATA, batch_size=4):
                step(model, optimizer, x)
                clock()
            step(model, optimizer, torch.randn(2, 3))

    with pytest.raises(Cut), session(checkpoint=tmp_path, every_n_steps=1):
        loop(Clock(14))
    with pytest.raises(UsageError, match=r"on batches that no loader made.*s.epochs"), session(checkpoint=tmp_path):
        loop(Clock())


def test_epochs_that_need_their_data_are_refused_with_the_word_to_change(tmp_path: Path) -> None:
    def loop(clock: Clock) -> None:
        model, optimizer = make()
        for _ in range(3):
            total = count = 0
            for (x,) in DataLoader(DATA, batch_size=4):
                total += step(model, optimizer, x)
                count += 1
                clock()
            print(total / count)

    with pytest.raises(Cut), session(checkpoint=tmp_path, every_n_steps=1):
        loop(Clock(14))
    with pytest.raises(UsageError, match=r"ZeroDivisionError.*for epoch in s.epochs"), session(checkpoint=tmp_path):
        loop(Clock())


def test_other_data_is_refused(tmp_path: Path) -> None:
    def loop(data: Any, clock: Clock) -> None:
        model, optimizer = make()
        for (x,) in DataLoader(data, batch_size=4):
            step(model, optimizer, x)
            clock()

    with pytest.raises(Cut), session(checkpoint=tmp_path, every_n_steps=1):
        loop(DATA, Clock(3))
    words = r"TensorDataset, 8 samples.*in the checkpoint it was over one of TensorDataset, 22 samples"
    with pytest.raises(UsageError, match=words), session(checkpoint=tmp_path):
        loop(TensorDataset(torch.ones(8, 3)), Clock())


# Verbs -------------------------------------------------------------------------------------------------------------


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


def test_registered_objects_must_be_the_same(tmp_path: Path) -> None:
    with session("checkpoint") as s:
        s.register("a", Counter())
        s.save(tmp_path / "one")
    with pytest.raises(CheckpointError, match="the checkpoint has a registered 'a', this loop has not"), session("checkpoint") as s:
        s.load(tmp_path / "one")


@pytest.mark.parametrize(("thing", "words"), [(3, "needs the methods"), (Counter(), "of this name already")])
def test_what_can_be_registered(thing: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words), session("checkpoint") as s:
        s.register("a", Counter())
        s.register("a", thing)
