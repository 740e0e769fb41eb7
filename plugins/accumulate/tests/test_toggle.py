"""s.toggle, s.no_sync, s.accumulating, s.is_last_batch on one rank."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from torchbus import session
from torchbus.errors import UsageError


def flags(*layers: nn.Module) -> list[bool]:
    return [parameter.requires_grad for layer in layers for parameter in layer.parameters()]


def test_only_the_optimizers_own_parameters_require_gradients() -> None:
    with session() as s:
        one, two, shared, frozen = (nn.Linear(1, 1, bias=False) for _ in range(4))
        frozen.requires_grad_(False)
        first = torch.optim.SGD(
            [*one.parameters(), *shared.parameters(), *frozen.parameters()], lr=0.1
        )
        second = torch.optim.SGD([*two.parameters(), *shared.parameters()], lr=0.1)
        with s.toggle(first):
            assert flags(one, two, shared, frozen) == [True, False, True, False]
            with s.toggle(second, sync_grad=False):
                assert flags(one, two, shared, frozen) == [False, True, True, False]
            assert flags(one, two, shared, frozen) == [True, False, True, False]
        assert flags(one, two, shared, frozen) == [True, True, True, False]


def test_the_heap_is_not_walked_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[object] = []
    walk = gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda *given: walks.append(given) or walk(*given))
    with session() as s:
        one, two, three = (nn.Linear(1, 1) for _ in range(3))
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (one, two)]
        for step in range(4):
            for optimizer in optimizers:
                with s.toggle(optimizer):
                    two(one(torch.ones(1, 1))).sum().backward()
                    optimizer.step()
            if step == 1:
                before = len(walks)
                optimizers.append(torch.optim.SGD(three.parameters(), lr=0.1))
                with s.toggle(optimizers[0]):
                    assert flags(one, two, three) == [True, True, False, False, False, False]
                    optimizers.pop()
    assert before == 1 == len(walks)


def test_parameters_are_restored_after_an_exception() -> None:
    with session() as s:
        one, two = nn.Linear(1, 1), nn.Linear(1, 1)
        optimizer, _other = (
            torch.optim.SGD(one.parameters(), lr=0.1),
            torch.optim.SGD(two.parameters(), lr=0.1),
        )
        with pytest.raises(KeyError), s.toggle(optimizer):
            raise KeyError
        assert all(flags(one, two))


def test_an_optimizer_that_the_session_never_saw() -> None:
    net = nn.Linear(1, 1)
    with session(capture=False) as s:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with (
            pytest.raises(UsageError, match=r"toggle\(SGD\): the session has not seen.*adopt"),
            s.toggle(optimizer),
        ):
            pass
        with pytest.raises(UsageError, match=r"toggle\(Linear\)"), s.toggle(net):
            pass
        s.adopt(optimizer)
        with s.toggle(optimizer):
            pass


@pytest.fixture(autouse=True)
def no_old_iterators() -> None:
    """Those that other tests have left in a cycle are alive until they are collected."""
    gc.collect()


class Stream(IterableDataset[int]):
    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(range(5))


@pytest.mark.parametrize("plugins", [(), ("accumulate",)])
def test_the_last_batch_is_known(plugins: tuple[str, ...]) -> None:
    with session(*plugins) as s:
        for _ in range(2):
            assert [s.is_last_batch for _ in DataLoader(range(5), batch_size=2)] == [
                False,
                False,
                True,
            ]  # type: ignore[arg-type]


def test_the_last_batch_of_a_stream_is_known() -> None:
    with session("accumulate") as s:
        assert [s.is_last_batch for _ in DataLoader(Stream(), batch_size=2)] == [False, False, True]


def test_without_a_loader_there_is_no_last_batch() -> None:
    with session() as s, pytest.raises(UsageError, match="no DataLoader"):
        _ = s.is_last_batch


@pytest.mark.parametrize("count", [-1, "3", None, True, float("nan")])
def test_a_backward_weight_is_a_count(count: object) -> None:
    with session() as s, pytest.raises(UsageError, match="backward_weight"):
        s.backward_weight(count)


def test_a_loop_that_accumulates_by_itself_stays_right() -> None:
    def run(s: object) -> torch.Tensor:
        torch.manual_seed(0)
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for index, x in enumerate(torch.ones(8, 3, 2).cumsum(0)):
            if s is None:
                (net(x).mean() / 2).backward()
            else:
                with s.accumulating((index + 1) % 2 != 0):  # type: ignore[attr-defined]
                    (net(x).mean() / 2).backward()
            if (index + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
        return net.weight.detach()

    with session() as s:
        found = run(s)
    assert torch.equal(found, run(None))
