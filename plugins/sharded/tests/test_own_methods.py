"""Methods of an optimizer's own that read its state, between steps: those of schedule-free optimizers under ddp_sharded."""

from __future__ import annotations

import pytest
import torch
from torchbus.testing import fork_script

from torchbus_sharded.zero1.strategy import takes_more_than_a_closure

SCRIPT = """
import json, torch
from torch.utils.data import DataLoader
from torchbus import session
torch.set_default_dtype(torch.float64)

class Averaged(torch.optim.SGD):
    '''Keeps the mean of all that a parameter was, which ``swap()`` puts in its place and takes away.'''

    def step(self, closure=None):
        super().step(closure)
        self.update()

    @torch.no_grad()
    def update(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                count = state["count"] = state.get("count", 0) + 1
                mean = state.setdefault("mean", torch.zeros_like(parameter))
                mean.lerp_(parameter, 1 / count)

    @torch.no_grad()
    def swap(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if "mean" in self.state[parameter]:
                    mean = self.state[parameter]["mean"]
                    mean.copy_(parameter + mean), parameter.copy_(mean - parameter), mean.sub_(parameter)

    def largest(self):
        return max(float(state["mean"].abs().max()) for state in self.state.values())

def train(batch_size):
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    optimizer = Averaged(net.parameters(), lr=0.3)
    optimizer.swap()
    printed = []
    for epoch in range(3):
        for x in DataLoader(DATA, batch_size=batch_size):
            optimizer.zero_grad()
            (net(x) - 1).square().mean().backward()
            optimizer.step()
        printed.append(optimizer.largest())
        optimizer.swap()
        printed.append(float(net(DATA).sum()))
        {odd}
        if epoch < 2:
            optimizer.swap()
    return torch.cat([torch.tensor(printed), net.weight.detach().reshape(-1), net.bias.detach()]), optimizer

DATA = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
s = None
"""
RIGHT = SCRIPT.replace("{odd}", "pass") + """
alone, lone = train(6)
lone.zero_grad()
lone.step()
with session(strategy="ddp_sharded", devices=RANKS, accelerator="cpu", launch="fork") as s:
    ours, optimizer = train(6 // RANKS)
    same = all(torch.equal(ours, other) for other in s.all_gather(ours))
    kept = sum("mean" in state for state in optimizer.state.values())
    optimizer.zero_grad()
    optimizer.step()
    kept_later = s.all_gather_object(sum(bool(state) for state in optimizer.state.values()))
state = all(torch.allclose(optimizer.state[a]["mean"], lone.state[b]["mean"]) for a, b in zip(optimizer.state, lone.state))
methods = [name for name in vars(optimizer) if callable(vars(optimizer)[name])]
print(json.dumps([float((ours - alone).abs().max()), same, kept, sum(kept_later), state, methods]))
"""
ALONE = SCRIPT.replace("{odd}", "optimizer.zero_grad(); optimizer.step(); optimizer.largest() if s.rank == 0 else None") + """
with session(strategy="ddp_sharded", devices=2, accelerator="cpu", launch="fork") as s:
    train(3)
"""


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_they_see_the_whole_state(ranks):
    difference, same, kept, kept_later, state, methods = fork_script(f"RANKS = {ranks}\n" + RIGHT, timeout_s=115).json()
    assert difference < 1e-12 and same and state
    assert kept == 2 and kept_later == 2, "of two tensors, each is kept by one rank again after the next step"
    assert methods == []


@pytest.mark.slow
def test_one_that_a_rank_calls_alone_is_named():
    result = fork_script(ALONE, timeout_s=115).ok(1)
    assert "RanksDiverged" in result.stderr and "rank 0 waits in Averaged.largest" in result.stderr, result.stderr


class Polyak(torch.optim.SGD):
    """The step is as long as the loss over the squared norm of all gradients."""

    def step(self, loss: torch.Tensor) -> None:
        del loss


def test_a_step_that_takes_a_loss_is_refused() -> None:
    weights = [torch.nn.Parameter(torch.ones(2))]
    assert takes_more_than_a_closure(Polyak(weights, lr=0.1))
    assert not any(takes_more_than_a_closure(cls(weights)) for cls in (torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop, torch.optim.ASGD))
