"""What accumulation refuses."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torchbus import session
from torchbus.errors import Unsupported, UsageError

from .windows_by_hand import Training, data


@pytest.mark.parametrize("window", [0, -1, 2.0, "4", True, {0: 0}, {-1: 2}, {0: 2.5}])
def test_a_window_must_be_a_whole_number(window: Any) -> None:
    with pytest.raises(UsageError, match=r"accumulate_grad_batches=.*(at least 1|not an epoch)"):
        session(accumulate_grad_batches=window)


def test_lbfgs_is_refused() -> None:
    with pytest.raises(Unsupported, match="LBFGS"), session(accumulate_grad_batches=2):
        Training(lambda parameters: torch.optim.LBFGS(parameters))
    gc.collect()  # or the next session may find it


def test_the_loops_own_gradscaler_is_refused() -> None:
    with (
        pytest.raises(Unsupported, match="precision='16-mixed'"),
        session(accumulate_grad_batches=2),
    ):
        training, scaler = Training(), torch.amp.GradScaler("cpu")
        scaler.scale(training.loss(*data(4))).backward()
        scaler.step(training.optimizer)


def turns(window: int, late: bool) -> None:
    """A GAN whose second optimizer steps after every third batch, and clears early or ``late``."""
    first, second = torch.nn.Linear(3, 1), torch.nn.Linear(3, 3)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (first, second)]
    loader = torch.utils.data.DataLoader(torch.randn(12, 3), batch_size=2)
    for number, x in enumerate(loader):
        optimizers[0].zero_grad(set_to_none=False)
        first(second(x).detach()).mean().backward()
        optimizers[0].step()
        if number % window == 0:
            if not late:
                optimizers[1].zero_grad(set_to_none=False)
            first(second(x)).mean().backward()
            optimizers[1].step()
            if late:
                optimizers[1].zero_grad(set_to_none=False)


def test_a_loop_that_accumulates_itself_is_refused() -> None:
    """A step that some batches lack is none, if their gradients are not in it."""
    words = r"^accumulate_grad_batches, and the loop accumulates as well: .* step\(\) of SGD once"
    with pytest.raises(Unsupported, match=words), session(accumulate_grad_batches=2):
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for number, x in enumerate(torch.utils.data.DataLoader(torch.randn(12, 3), batch_size=2)):
            net(x).mean().backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    for late in (False, True):
        with session(accumulate_grad_batches=2):
            turns(3, late)
