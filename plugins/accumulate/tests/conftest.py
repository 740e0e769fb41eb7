"""Windows of batches, run with a loader and without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from torch import Tensor
from torchbus import session

from .between_runs import WINDOW, Body, batches
from .windows_by_hand import Training


@pytest.fixture(params=[True, False], ids=["loader", "no loader"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Body], Tensor]]:
    def train(body: Body) -> Tensor:
        with session(accumulate_grad_batches=WINDOW):
            training = Training()
            for index, (x, y) in enumerate(batches(request.param)):
                body(training, x, y, index)
        return training.values()

    yield train
