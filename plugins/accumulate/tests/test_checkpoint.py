"""A window that is open when a checkpoint is made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import Unsupported, UsageError

from torchbus_accumulate.plugin import Accumulate

from .windows_by_hand import Training, by_hand, data, loader, unchanged


def test_an_open_window_in_a_checkpoint(tmp_path: Path) -> None:
    """Two epochs of 6 batches, left after the first batch of the second window, and gone on with by
    other objects.
    """
    x, y = data(22)
    plugin = Accumulate(4)
    with session(plugin):
        first = Training()
        for index, (a, b) in enumerate(loader(22, 4)):
            first.optimizer.zero_grad()
            first.loss(a, b).backward()
            if index == 4:
                with pytest.raises(Unsupported, match="after optimizer.step"):
                    plugin.state_dict()
            first.optimizer.step()
            first.scheduler.step()
            if index == 4:
                states = [
                    first.net.state_dict(),
                    first.optimizer.state_dict(),
                    first.scheduler.state_dict(),
                    plugin.state_dict(),
                ]
                torch.save(states, tmp_path / "state.pt")
                break
    plugin = Accumulate(4)
    states = torch.load(tmp_path / "state.pt", weights_only=True)
    with session(plugin):
        second = Training()
        for one, state in zip(
            (second.net, second.optimizer, second.scheduler, plugin), states, strict=True
        ):
            one.load_state_dict(state)
        unchanged(second, DataLoader(TensorDataset(x[20:], y[20:]), batch_size=4), epochs=1)
        found = unchanged(second, loader(22, 4), epochs=1)
    assert torch.equal(found, by_hand(Training(), 22, 4, 4))


def test_an_open_window_needs_its_optimizers() -> None:
    plugin = Accumulate(4)
    with session(plugin, capture=False) as s:
        training = Training()
        s.adopt(training.optimizer)
        training.loss(*data(4)).backward()
        training.optimizer.step()
        state = plugin.state_dict()
    again = Accumulate(4)
    with session(again, capture=False) as s:
        with pytest.raises(UsageError, match="create the optimizers before you load"):
            again.load_state_dict(state)
        s.adopt(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))
        with pytest.raises(UsageError, match="gradients of 4 parameters, and the optimizer has 2"):
            again.load_state_dict(state)
