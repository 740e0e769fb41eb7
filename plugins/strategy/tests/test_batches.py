"""Which batch feeds a backward."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchbus import session
from torchbus.errors import UsageError
from torchbus.session import Session

from torchbus_strategy.batches import collect

Wrap = Callable[[DataLoader[Any]], Any]
Pair = namedtuple("Pair", "x y")


@dataclass
class Held:
    x: Tensor
    y: Tensor


class Slots:
    __slots__ = ("x", "y")

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y


class Numbers(Dataset[Tensor]):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index)])


def one_ahead(loader: DataLoader[Any]) -> Iterator[Any]:
    iterator = iter(loader)
    following = next(iterator)
    for batch in iterator:
        yield following
        following = batch
    yield following


def three_ahead(loader: DataLoader[Any]) -> Iterator[Any]:
    fetched: deque[Any] = deque()
    for batch in loader:
        fetched.append(batch)
        if len(fetched) == 3:
            yield fetched.popleft()
    while fetched:
        yield fetched.popleft()


def by_thread(loader: DataLoader[Any]) -> Iterator[Any]:
    batches: queue.Queue[Any] = queue.Queue(2)

    def read() -> None:
        for batch in loader:
            batches.put(batch)
        batches.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (batch := batches.get()) is not None:
        yield batch


WRAPPERS: dict[str, Wrap] = {
    "plain": lambda loader: loader,
    "one ahead": one_ahead,
    "three ahead": three_ahead,
    "thread": by_thread,
    "list": list,
    "tee": lambda loader: itertools.tee(loader)[1],
    "cycle": lambda loader: itertools.islice(itertools.cycle(loader), 9),
}


def numbers_fed(s: Session) -> list[int]:
    return [batch.number for batch in s._context.batches.current]


@pytest.fixture
def s() -> Iterator[Session]:
    with session() as made:
        made._context.batches.follow()
        made._context.seams.refresh()
        yield made


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("backwards", [1, 2])
def test_the_batch_that_a_graph_has_saved(s: Session, wrap: Wrap, backwards: int) -> None:
    weight = nn.Parameter(torch.ones(1))
    for step, x in enumerate(wrap(DataLoader(Numbers()))):
        for _ in range(backwards):
            (weight * x).sum().backward()
            assert numbers_fed(s) == [step % 7 + 1]


@pytest.mark.parametrize("wrap", [one_ahead, three_ahead])
def test_where_no_graph_has_saved_it_the_oldest_that_lives(s: Session, wrap: Wrap) -> None:
    weight = nn.Parameter(torch.ones(1))
    for x in wrap(DataLoader(Numbers())):
        for _ in range(2):
            (weight + x).sum().backward()
            assert numbers_fed(s) == [int(x) + 1]


@pytest.mark.parametrize(
    "pack",
    [
        lambda x, y: {"a": [x], "b": y},
        Pair,
        Held,
        Slots,
        lambda x, y: (Held(x, y), "label"),
        lambda x, y: [None, {"y": y}],
    ],
    ids=["dict", "namedtuple", "dataclass", "slots", "tuple", "list"],
)
def test_batches_of_every_form(s: Session, pack: Callable[[Tensor, Tensor], Any]) -> None:
    def collate(items: list[Tensor]) -> Any:
        return pack(torch.stack(items), torch.stack(items))

    def target(batch: Any) -> Tensor:
        if isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
            batch = batch[0] or batch[1]
        return batch.get("b", batch.get("y")) if isinstance(batch, dict) else batch.y

    weight = nn.Parameter(torch.ones(1))
    for number, batch in enumerate(one_ahead(DataLoader(Numbers(), collate_fn=collate)), start=1):
        nn.functional.mse_loss(weight.expand(1, 1), target(batch)).backward()
        assert numbers_fed(s) == [number]


def test_a_batch_that_is_looked_at_feeds_nothing(s: Session) -> None:
    weight = nn.Parameter(torch.ones(1))
    fixed = next(iter(DataLoader(Numbers(), batch_size=2)))
    train, look = DataLoader(Numbers()), DataLoader(Numbers(), batch_size=3)
    for x in train:
        next(iter(look)).sum()
        (weight * x).sum().backward()
        assert [
            batch.origin.loader()
            for batch in s._context.batches.current
            if batch.origin.loader is not None
        ] == [train]
        next(iter(look)).sum()
        (weight * 2).sum().backward()
    assert fixed.shape == (2, 1)


@pytest.mark.parametrize("convert", [lambda x: x, Tensor.double], ids=["as they are", "copies"])
def test_zipped_loaders_feed_together(s: Session, convert: Callable[[Tensor], Tensor]) -> None:
    weight = nn.Parameter(torch.ones(1))
    for step, (x, u) in enumerate(
        zip(DataLoader(Numbers()), DataLoader(Numbers(), batch_size=3), strict=False)
    ):
        u = convert(u)
        ((weight * x).sum() + (weight * u).mean()).backward()
        assert sorted(batch.rows for batch in s._context.batches.current) == (
            [1, len(u)] if convert is not Tensor.double or step else [1]
        )


def test_copies_in_step_are_known_and_out_of_step_refused(s: Session) -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
    for number, x in enumerate((x.double() for x in DataLoader(Numbers())), start=1):
        (weight * x).sum().backward()
        assert numbers_fed(s) == [number]
    s._context.batches.follow("accumulation windows")
    with pytest.raises(
        UsageError,
        match="2 batches of the loader over Numbers were read before this backward.*This decides accumulation windows",
    ):
        for x in one_ahead(batch.double() for batch in DataLoader(Numbers())):
            (weight * x).sum().backward()


@pytest.mark.parametrize(
    "wrap", [list, lambda loader: itertools.cycle(loader)], ids=["list", "cycle"]
)
def test_batches_that_are_given_again_and_saved_by_no_graph_are_refused(
    s: Session, wrap: Wrap
) -> None:
    s._context.batches.follow("accumulation windows")
    weight = nn.Parameter(torch.ones(1))
    steps = 0
    with pytest.raises(UsageError, match="which of them feeds it: the loop"):
        for x in wrap(DataLoader(Numbers())):
            (weight + x).sum().backward()
            steps += 1
    assert steps == (0 if wrap is list else 7)


def test_a_data_set_that_gives_the_same_tensors_again_costs_nothing_more(s: Session) -> None:
    kept = [torch.ones(2, 1), torch.ones(3, 1)]
    weight = nn.Parameter(torch.ones(1))
    for _ in range(50):
        for x in DataLoader(kept, batch_size=None):  # type: ignore[arg-type]
            (weight * x).sum().backward()
            assert [batch.rows for batch in s._context.batches.current] == [len(x)]
    assert len(s._context.batches._history.used) <= 2


def test_evaluation_is_not_kept(s: Session) -> None:
    with torch.no_grad():
        assert sum(len(x) for x in DataLoader(Numbers())) == 7
    assert s._context.batches.count == 0


def test_tensors_in_the_attributes_of_other_objects_are_found() -> None:
    one = torch.ones(1)

    class Slot:
        __slots__ = ("x",)

        def __init__(self, x: list[torch.Tensor]) -> None:
            self.x = x

    class Batch:
        def __init__(self) -> None:
            self.x, self.rest = one, Slot([one])

    found: list[torch.Tensor] = []
    collect({"batch": Batch()}, found)
    assert len(found) == 2
