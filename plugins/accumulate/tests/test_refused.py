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
