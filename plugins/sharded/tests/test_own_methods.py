"""Methods of an optimizer's own that read its state, between steps: those of schedule-free
optimizers under ddp_sharded.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torchbus_sharded.zero1 import takes_more_than_a_closure
from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "own_methods_head.py"
RIGHT = SCRIPTS / "own_methods.py"
ALONE = SCRIPTS / "own_methods_alone.py"


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_they_see_the_whole_state(ranks):
    difference, same, kept, kept_later, state, methods = fork_script(
        RIGHT, ranks, timeout_s=115
    ).json()
    assert difference < 1e-12 and same and state
    assert kept == 2 and kept_later == 2, (
        "of two tensors, each is kept by one rank again after the next step"
    )
    assert methods == []


@pytest.mark.slow
def test_one_that_a_rank_calls_alone_is_named():
    result = fork_script(ALONE, timeout_s=115).ok(1)
    assert (
        "RanksDiverged" in result.stderr and "rank 0 waits in Averaged.largest" in result.stderr
    ), result.stderr


class Polyak(torch.optim.SGD):
    """The step is as long as the loss over the squared norm of all gradients."""

    def step(self, loss: torch.Tensor) -> None:
        del loss


def test_a_step_that_takes_a_loss_is_refused() -> None:
    weights = [torch.nn.Parameter(torch.ones(2))]
    assert takes_more_than_a_closure(Polyak(weights, lr=0.1))
    assert not any(
        takes_more_than_a_closure(cls(weights))
        for cls in (torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop, torch.optim.ASGD)
    )
