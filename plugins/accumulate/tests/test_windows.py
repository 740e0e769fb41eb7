"""Windows of an unchanged loop against the one big batch, on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchbus import session

from .windows_by_hand import Training, by_hand, data, loader, unchanged


@pytest.mark.share(3)
@pytest.mark.parametrize("zero", ["first", "model", "by hand"])
@pytest.mark.parametrize(
    ("samples", "batch", "window"), [(24, 4, 3), (22, 4, 3), (9, 4, 8), (22, 4, 1)]
)
def test_equals_accumulation_by_hand_bit_for_bit(
    zero: str, samples: int, batch: int, window: int
) -> None:
    with session(accumulate_grad_batches=window):
        training = Training()
        found = unchanged(training, loader(samples, batch), zero=zero)
    expected = Training()
    assert torch.equal(found, by_hand(expected, samples, batch, window))
    assert training.scheduler.last_epoch == expected.scheduler.last_epoch


def test_a_batch_counts_whole_if_the_others_of_its_window_have_failed() -> None:
    def fail(_: Tensor) -> None:
        raise ValueError

    expected, found = Training(), Training()
    x, y = data(7)
    for part in (slice(0, 4), slice(6, 7)):
        expected.optimizer.zero_grad()
        expected.loss(x[part], y[part]).backward()
        expected.optimizer.step()
    with session(accumulate_grad_batches=2):
        for number, batch in enumerate(loader(7, 2)):
            found.optimizer.zero_grad()
            loss = found.loss(*batch)
            if number == 2:
                loss.register_hook(fail)
                with pytest.raises(ValueError):
                    loss.backward()
                continue
            loss.backward()
            found.optimizer.step()
    torch.testing.assert_close(found.values(), expected.values())


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=True),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
        lambda parameters: torch.optim.SGD(
            [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.3}], lr=0.1
        ),
        lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, foreach=False),
    ],
    ids=["foreach", "fused", "groups", "loops"],
)
def test_every_kind_of_optimizer(make: Any) -> None:
    with session(accumulate_grad_batches=3):
        found = unchanged(Training(make), loader(22, 4))
    assert torch.equal(found, by_hand(Training(make), 22, 4, 3))


@pytest.mark.parametrize(
    "clip",
    [lambda p: clip_grad_norm_(p, 0.05), lambda p: clip_grad_value_(p, 0.01)],
    ids=["norm", "value"],
)
def test_the_loops_own_clipping_sees_the_whole_window(clip: Any) -> None:
    with session(accumulate_grad_batches=3):
        found = unchanged(Training(), loader(22, 4), clip=clip)
    assert torch.equal(found, by_hand(Training(), 22, 4, 3, clip=clip))


@settings(max_examples=4, deadline=None)
@given(samples=st.integers(1, 40), batch=st.integers(1, 7), window=st.integers(1, 6))
def test_every_step_has_the_gradient_of_the_big_batch(
    samples: int, batch: int, window: int
) -> None:
    with session(accumulate_grad_batches=window):
        found = unchanged(Training(), loader(samples, batch), epochs=1)
    assert torch.allclose(
        found, by_hand(Training(), samples, batch * window, 1, epochs=1), rtol=1e-6, atol=1e-9
    )


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(*data(22), strict=True))


def test_a_stream_of_unknown_length_is_stepped_at_its_end() -> None:
    with session(accumulate_grad_batches=4):
        found = unchanged(Training(), DataLoader(Stream(), batch_size=4))
    assert torch.allclose(found, by_hand(Training(), 22, 4, 4), rtol=1e-12)


def test_a_schedule_by_epoch() -> None:
    with session(accumulate_grad_batches={0: 3, 1: 2}):
        found = unchanged(Training(), loader(22, 4))
    training = Training()
    by_hand(training, 22, 4, 3, epochs=1)
    assert torch.equal(found, by_hand(training, 22, 4, 2, epochs=1))


def test_a_pass_left_by_break_loses_nothing() -> None:
    def run(training: Training, batches: Any, stop: int) -> Tensor:
        for _ in range(2):
            for index, (x, y) in enumerate(batches):
                training.optimizer.zero_grad()
                training.loss(x, y).backward()
                training.optimizer.step()
                if index == stop:
                    break
            training.scheduler.step()
        return training.values()

    with session(accumulate_grad_batches=4):
        training = Training()
        found = run(training, loader(22, 2), 5)
    assert training.scheduler.last_epoch == 2
    expected = Training()
    x, y = data(22)
    assert torch.allclose(found, run(expected, [(x[:8], y[:8]), (x[8:12], y[8:12])], 1), rtol=1e-12)


def test_closures_and_batches_made_by_hand() -> None:
    def run(training: Training, batch: int) -> Tensor:
        for x, y in zip(*(part.split(batch) for part in data(24)), strict=True):

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                training.optimizer.zero_grad()
                loss = training.loss(x, y)
                loss.backward()
                return loss

            assert training.optimizer.step(closure) is not None
        return training.values()

    with session(accumulate_grad_batches=3):
        found = run(Training(), 4)
    assert torch.allclose(found, run(Training(), 12), rtol=1e-12)


def test_sparse_gradients() -> None:
    def run(batch: int) -> Tensor:
        torch.manual_seed(0)
        table = nn.Embedding(10, 2, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        for (index,) in DataLoader(TensorDataset(torch.arange(22) % 7), batch_size=batch):
            optimizer.zero_grad()
            table(index).square().mean().backward()
            optimizer.step()
        return table.weight.detach().clone()

    with session(accumulate_grad_batches=3):
        found = run(4)
    assert torch.allclose(found, run(12), atol=1e-6)


def test_weights_by_tokens() -> None:
    tokens = torch.arange(22) % 5

    def run(s: Any, batch: int) -> Tensor:
        training = Training()
        for x, y, count in DataLoader(TensorDataset(*data(22), tokens), batch_size=batch):
            training.optimizer.zero_grad()
            loss = ((training.net(x.double()) - y).square().squeeze(1) * count).sum() / count.sum()
            if s:
                s.backward_weight(count.sum().item())
            loss.backward()
            training.optimizer.step()
        return training.values()

    with session(accumulate_grad_batches=3) as s:
        found = run(s, 4)
    assert torch.allclose(found, run(None, 12), rtol=1e-12)


def test_an_optimizer_replaced_in_mid_run() -> None:
    with session(accumulate_grad_batches=3):
        training = Training()
        unchanged(training, loader(22, 4), epochs=1)
        training.optimizer = torch.optim.Adam(training.net.parameters(), lr=0.01)
        found = unchanged(training, loader(22, 4), epochs=1)
    expected = Training()
    by_hand(expected, 22, 4, 3, epochs=1)
    expected.optimizer = torch.optim.Adam(expected.net.parameters(), lr=0.01)
    assert torch.equal(found, by_hand(expected, 22, 4, 3, epochs=1))


def test_a_scheduler_made_before_the_block() -> None:
    training = Training()
    with session(accumulate_grad_batches=3):
        found = unchanged(training, loader(22, 4))
    assert torch.equal(found, by_hand(Training(), 22, 4, 3))
    before = training.values()
    training.loss(*data(4)).backward()
    training.optimizer.step()
    assert not torch.equal(before, training.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "options",
    [{"foreach": True}, {"fused": True}, {"capturable": True}],
    ids=["foreach", "fused", "capturable"],
)
def test_equals_accumulation_by_hand_on_a_gpu(options: dict[str, bool]) -> None:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01, **options)

    with session(accumulate_grad_batches=3, devices=1):
        found = unchanged(Training(make, "cuda"), loader(22, 4))
    assert torch.equal(found, by_hand(Training(make, "cuda"), 22, 4, 3))
