"""Loops whose batches come from wrappers of loaders: resumed at the batch that was used last, or
refused.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.errors import UsageError

Wrap = Callable[[DataLoader[Any]], Any]
DATA = torch.arange(1.0, 17.0, dtype=torch.float64)[:, None]


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


def by_thread(inner: DataLoader[Any]) -> Iterator[Any]:
    batches: queue.Queue[Any] = queue.Queue()

    def read() -> None:
        for batch in inner:
            batches.put(batch)
        batches.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (batch := batches.get()) is not None:
        yield batch


def train(wrap: Wrap, cut: int = 0) -> float:
    """Three epochs of four batches; ``cut`` says after how many steps the run is interrupted."""
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    loader, steps = DataLoader(DATA, batch_size=4), 0  # type: ignore[arg-type]
    for _ in range(3):
        for x in wrap(loader):
            optimizer.zero_grad()
            (weight * x).mean().backward()
            optimizer.step()
            steps += 1
            if steps == cut:
                raise KeyboardInterrupt
    return weight.item()


@pytest.mark.parametrize(
    "wrap", [ahead(1), ahead(2), lambda inner: itertools.tee(inner)[0]], ids=["one", "two", "tee"]
)
@pytest.mark.parametrize("cut", [1, 2, 3, 4, 6])
def test_a_resumed_run_goes_on_with_the_batch_after_the_one_used_last(
    tmp_path: Path, wrap: Wrap, cut: int
) -> None:
    folder = tmp_path / "checkpoints"
    with pytest.raises(KeyboardInterrupt), session(checkpoint=folder, every_n_steps=1):
        train(wrap, cut)
    with session(checkpoint=folder, every_n_steps=1):
        resumed = train(wrap)
    assert resumed == train(lambda inner: inner)


@pytest.mark.parametrize(
    ("wrap", "why"),
    [
        (list, "stored, and yielded again"),
        (lambda inner: itertools.islice(itertools.cycle(inner), 8), "stored, and yielded again"),
        (by_thread, "read by another thread"),
    ],
    ids=["list", "cycle", "thread"],
)
def test_what_a_replay_cannot_find_again_is_refused(tmp_path: Path, wrap: Wrap, why: str) -> None:
    with (
        pytest.raises(UsageError, match=f"can't record the loop's position in its data.*{why}"),
        session(checkpoint=tmp_path / "c"),
    ):
        train(wrap)
    with session("checkpoint") as s:
        s._context.batches.follow()
        train(wrap)
        with pytest.raises(UsageError, match=why):
            s.save(tmp_path / "by hand")


def with_rows_kept(keep: Callable[[torch.Tensor], object], cut: int = 0) -> float:
    """Rows of the first batch are looked at after each epoch."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(torch.randn(12, 3), batch_size=4, shuffle=True)
    kept: object = None
    steps, seen = itertools.count(1), 0.0
    for _ in range(3):
        for x in loader:
            kept = keep(x) if kept is None else kept
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if next(steps) == cut:
                raise KeyboardInterrupt
        with torch.no_grad():
            seen = model(torch.as_tensor(kept).reshape(-1, 3)).sum().item()
    return seen


@pytest.mark.parametrize(
    "keep", [lambda x: x[:2], lambda x: x, lambda x: x[0], lambda x: x.numpy()[1:]]
)
def test_rows_of_a_batch_that_the_loop_keeps_refuse_nothing(
    tmp_path: Path, keep: Callable[[torch.Tensor], object]
) -> None:
    for cut in (2, 5):
        folder = tmp_path / str(cut)
        with pytest.raises(KeyboardInterrupt), session(checkpoint=folder, every_n_steps=1):
            with_rows_kept(keep, cut)
        with session(checkpoint=folder, every_n_steps=1):
            resumed = with_rows_kept(keep)
        if keep(torch.ones(2, 3)).__class__ is torch.Tensor:
            assert resumed == with_rows_kept(keep)
