"""A loop without a loader whose batches count the same for a while, and then no longer."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.world import Share

from torchbus_accumulate.plugin import Accumulate

from .windows_by_hand import Training, data, loader

WINDOW, BATCH = 3, 2


def step(training: Training, x: Tensor, y: Tensor) -> None:
    training.optimizer.zero_grad()
    training.loss(x, y).backward()
    training.optimizer.step()


def batches(sizes: Iterable[int]) -> list[tuple[Tensor, ...]]:
    sizes = list(sizes)
    return list(zip(*(part.split(sizes) for part in data(sum(sizes))), strict=True))


def big_batches(sizes: Iterable[int]) -> Tensor:
    training = Training()
    for x, y in batches(sizes):
        step(training, x, y)
    return training.values()


def test_batches_that_count_the_same() -> None:
    with session(accumulate_grad_batches=WINDOW):
        training = Training()
        for x, y in batches([BATCH] * 9):
            step(training, x, y)
    assert torch.allclose(training.values(), big_batches([6, 6, 6]), rtol=1e-12)


def test_losses_that_ignore_some_targets() -> None:
    """A window is divided by the targets that count, which the graph of each loss tells."""
    torch.manual_seed(1)
    inputs, targets = torch.randn(9, BATCH, 4).double(), torch.arange(9 * BATCH).view(9, BATCH) % 3
    targets[1::2, 0] = -100

    def trained(size: int) -> Tensor:
        torch.manual_seed(0)
        model = nn.Linear(4, 3).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in zip(inputs.split(size), targets.split(size), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.flatten(0, 1)), y.flatten()).backward()
            optimizer.step()
        return model.weight.detach()

    with session(accumulate_grad_batches=WINDOW):
        windows = trained(1)
    assert torch.allclose(windows, trained(WINDOW), rtol=1e-12)


def test_which_backwards_are_synchronised() -> None:
    found: list[bool] = []

    class Heard:
        @hookimpl(trylast=True)
        def before_backward(self, call: Any) -> None:
            found.append(call.sync)

    with session(Heard(), accumulate_grad_batches=WINDOW) as s:
        training = Training()
        for index, (x, y) in enumerate(batches([BATCH] * 9)):
            with s.accumulating(index >= 6):
                step(training, x, y)
    assert found == [False, False, True] * 2 + [False] * 3


@pytest.mark.share(3)
@pytest.mark.parametrize("change", [3, 4, 5])
def test_counts_of_samples_that_change(change: int) -> None:
    """As a plugin tells them that divides the data."""
    sizes = [2] * change + [4] * (9 - change)
    with session(accumulate_grad_batches=WINDOW) as s:
        training, share = Training(), Share(count=2)
        for index, (x, y) in enumerate(batches(sizes)):
            s._context.share = share = share if index != change else Share(count=4)
            step(training, x, y)
    assert torch.allclose(
        training.values(), big_batches(sum(sizes[at : at + 3]) for at in (0, 3, 6)), rtol=1e-12
    )


@pytest.mark.share(3)
@pytest.mark.parametrize("change", [3, 4, 5])
def test_the_loop_begins_to_count_tokens(change: int) -> None:
    """Each sample is one token; the batches are not equal from then on."""
    sizes = [2] * change + [4] * (9 - change)
    with session(accumulate_grad_batches=WINDOW) as s:
        training = Training()
        for index, (x, y) in enumerate(batches(sizes)):
            if index >= change - change % WINDOW:
                s.backward_weight(len(x))
            step(training, x, y)
    assert torch.allclose(
        training.values(), big_batches(sum(sizes[at : at + 3]) for at in (0, 3, 6)), rtol=1e-12
    )


def test_a_loader_after_batches_without_one() -> None:
    """Its batches are of other sizes, and the last one is smaller."""
    with session(accumulate_grad_batches=WINDOW):
        training = Training()
        for x, y in batches([BATCH] * 6):
            step(training, x, y)
        for x, y in loader(22, 5):
            step(training, x, y)
    expected = Training()
    for x, y in [*batches([6, 6]), *zip(*(part.split(15) for part in data(22)), strict=True)]:
        step(expected, x, y)
    assert torch.allclose(training.values(), expected.values(), rtol=1e-12)


def test_optimizers_that_come_and_go_in_the_middle_of_a_window() -> None:
    with session(accumulate_grad_batches=WINDOW):
        training = Training()
        for index, (x, y) in enumerate(batches([BATCH] * 9)):
            if index == 4:
                other = Training()
            if index == 6:
                del other
            step(training, x, y)
    assert torch.allclose(training.values(), big_batches([6, 6, 6]), rtol=1e-12)


def test_a_second_optimizer_whose_parameters_the_first_ones_loss_reaches() -> None:
    """It comes after a window, and clears those gradients before its own backward, as in a GAN."""

    def train(training: Training, batch: int) -> Tensor:
        torch.manual_seed(2)
        head = nn.Linear(1, 1).double()
        for x, y in batches([batch] * (18 // batch)):
            if training.scheduler.last_epoch == 6 // batch:
                second = torch.optim.SGD(head.parameters(), lr=0.1)
            training.optimizer.zero_grad()
            (training.loss(x, y) + head(training.net(x.double())).mean()).backward()
            training.optimizer.step()
            training.scheduler.last_epoch += 1
            if training.scheduler.last_epoch > 6 // batch:
                second.zero_grad()
                (head(y.double()) - 1).square().mean().backward()
                second.step()
        return torch.cat([training.values(), head.weight.detach().reshape(-1), head.bias.detach()])

    with session(accumulate_grad_batches=WINDOW):
        found = train(Training(), BATCH)
    assert torch.allclose(found, train(Training(), BATCH * WINDOW), rtol=1e-12)


def test_a_checkpoint_is_loaded_in_a_steady_loop() -> None:
    """Its open window began with a batch twice as large: what follows is in proportion to that."""
    first, *rest = batches([4, 2, 2])
    plugin = Accumulate(WINDOW)
    with session(plugin) as s:
        s._context.share = Share(count=4)
        begun = Training()
        step(begun, *first)
        state = plugin.state_dict()
    del begun
    gc.collect()  # the next session has one optimizer
    plugin = Accumulate(WINDOW)
    with session(plugin) as s:
        training, s._context.share = (
            Training(lambda parameters: torch.optim.SGD(parameters, lr=0.0)),
            Share(count=2),
        )
        for x, y in batches([2] * 3):
            step(training, x, y)
        plugin.load_state_dict(state)
        training.optimizer.param_groups[0]["lr"] = 0.1
        for x, y in rest:
            step(training, x, y)
    assert torch.allclose(training.values(), big_batches([8]), rtol=1e-12)
