"""Methods of an optimizer's own that read its state, between steps: those of schedule-free
optimizers under ddp_sharded.
"""

from __future__ import annotations

import json
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


HOOKS = """
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader
from torchbus import session

torch.set_default_dtype(torch.float64)

class Twice(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.9)

def averaged(kind):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    optimizer = kind(model.parameters(), 0.1)
    optimizer.register_step_post_hook(lambda *_: average.update_parameters(model))
    for x in DataLoader(torch.randn(32, 3), 8):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
    return [parameter.tolist() for parameter in (*average.parameters(), *model.parameters())]

for kind in (torch.optim.SGD, Twice):
    alone = torch.tensor(averaged(kind)[-1])
    with session(strategy="ddp_sharded", devices=2, accelerator="cpu", launch="fork", batch="global"):
        found = averaged(kind)
    print(torch.allclose(alone, torch.tensor(found[-1])), found[1])
print(averaged(torch.optim.SGD)[1])
"""


def test_hooks_of_a_step_see_the_parameters_of_all_ranks() -> None:
    first, second, alone = fork_script(HOOKS).ok().stdout.splitlines()
    assert first.startswith("True") and second.startswith("True")
    assert json.loads(first.removeprefix("True ")) == pytest.approx(json.loads(alone))
