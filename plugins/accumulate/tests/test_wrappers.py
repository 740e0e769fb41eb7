"""Windows of loops whose batches come from wrappers that fetch ahead, or give them again."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import UsageError

from .windows_by_hand import Training, by_hand, data, loader, unchanged

Wrap = Callable[[DataLoader[Any]], Any]


class Wrapped:
    """A loader that is wrapped anew for each epoch."""

    def __init__(self, wrap: Wrap, inner: DataLoader[Any]) -> None:
        self._wrap, self._inner = wrap, inner

    def __iter__(self) -> Iterator[Any]:
        return iter(self._wrap(self._inner))


def doubles(samples: int, batch: int) -> DataLoader[Any]:
    """What the loop computes with are the loader's own tensors."""
    return DataLoader(
        TensorDataset(*[tensor.double() for tensor in data(samples)]), batch_size=batch
    )


def ahead(depth: int) -> Wrap:
    def wrap(inner: DataLoader[Any]) -> Iterator[Any]:
        fetched: deque[Any] = deque()
        for batch in inner:
            fetched.append(batch)
            if len(fetched) > depth:
                yield fetched.popleft()
        while fetched:
            yield fetched.popleft()

    return wrap


@pytest.mark.share(5)
@pytest.mark.parametrize(
    "wrap",
    [ahead(1), ahead(3), list, lambda inner: itertools.tee(inner)[0]],
    ids=["one", "three", "list", "tee"],
)
@pytest.mark.parametrize(("samples", "window"), [(24, 3), (22, 3), (22, 2), (9, 8)])
def test_the_window_is_that_of_the_batches_that_are_used(
    wrap: Wrap, samples: int, window: int
) -> None:
    with session(accumulate_grad_batches=window):
        training = Training()
        found = unchanged(training, Wrapped(wrap, doubles(samples, 4)))
    expected = Training()
    assert torch.equal(found, by_hand(expected, samples, 4, window))
    assert training.scheduler.last_epoch == expected.scheduler.last_epoch


def test_a_list_that_is_trained_on_for_several_epochs() -> None:
    with session(accumulate_grad_batches=3):
        found = unchanged(Training(), list(doubles(22, 4)), epochs=3)
    assert torch.allclose(found, by_hand(Training(), 22, 4, 3, epochs=3), rtol=1e-12)


def test_what_cannot_be_known_is_refused_at_once() -> None:
    def copies(inner: DataLoader[Any]) -> Iterator[Any]:
        return ((x.float().double(), y + 0.0) for x, y in inner)

    training = Training()
    with (
        session(accumulate_grad_batches=2),
        pytest.raises(UsageError, match="This decides accumulation windows"),
    ):
        unchanged(training, Wrapped(lambda inner: ahead(2)(copies(inner)), loader(24, 4)))  # type: ignore[arg-type]
    assert not training.optimizer.state
