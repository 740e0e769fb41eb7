"""fsdp: tensors that an optimizer holds and no module owns."""

from __future__ import annotations

from textwrap import indent
from typing import Any

from torchbus.testing import fork_script

TRAIN = """
import json, torch
from torch import nn
from torchbus import session
torch.set_default_dtype(torch.float64)

def train(mine, adopt=lambda tensor: tensor):
    torch.manual_seed(0)
    data = torch.randn(4, 8, 3, generator=torch.Generator().manual_seed(1))
    net, scale = nn.Linear(3, 1), torch.ones(3, requires_grad=True)
    shift = adopt(torch.zeros(3, requires_grad=True))
    optimizer = torch.optim.SGD([*net.parameters(), scale], lr=0.1, momentum=0.9)
    for x in data:
        for half in x[mine].chunk(2):  # two backwards, which add up
            net(half * scale + shift).square().mean().backward()
        with torch.no_grad():
            shift -= 0.1 * shift.grad
        shift.grad = None
        optimizer.step()
        optimizer.zero_grad()
    return scale.detach().tolist() + shift.tolist()

found = {"alone": train(torch.tensor([0, 1, 4, 5, 2, 3, 6, 7]))}
"""


def facts(body: str) -> dict[str, Any]:
    line = 'with session(strategy="fsdp", devices=2, launch="fork", accelerator="cpu") as s:'
    return fork_script("\n".join([TRAIN, line, indent(body, "    "), "print(json.dumps(found))"])).json()


def test_they_get_the_gradients_of_one_process() -> None:
    found = facts("""
found["ranks"] = s.all_gather_object(train(slice(4 * s.rank, 4 * s.rank + 4), s.adopt))
found["told"] = s.explain()
""")
    for rank in found["ranks"]:
        assert max(abs(ours - alone) for ours, alone in zip(rank, found["alone"], strict=True)) < 1e-9
    assert "2 tensors that no module owns are whole on every rank, and averaged after each backward" in " ".join(found["told"].split())


ASSIGNED = """
def search(mine):
    torch.manual_seed(0)
    data = torch.randn(4, 8, 3, generator=torch.Generator().manual_seed(1))
    net, scale = nn.Linear(3, 1), torch.ones(3, requires_grad=True)
    optimizer, searcher = torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.Adam([scale], lr=0.1)
    for x in data:
        scale.grad = torch.autograd.grad(net(x[mine] * scale).square().mean(), [scale])[0]
        searcher.step()
        net(x[mine] * scale).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return scale.detach().tolist()

alone, both = search(slice(None)), s.all_gather_object(search(slice(4 * s.rank, 4 * s.rank + 4)))
found["apart"] = max(abs(ours - one) for rank in both for ours, one in zip(rank, alone))
"""


def test_gradients_that_the_loop_assigns_are_averaged_at_the_step() -> None:
    assert facts(ASSIGNED)["apart"] < 1e-9


def test_rank_0_has_their_first_values() -> None:
    found = facts("""
weight = (torch.ones(3) * s.rank).requires_grad_()
optimizer = torch.optim.SGD([*nn.Linear(3, 1).parameters(), weight], lr=0.1)
found["weights"] = s.all_gather_object(weight.tolist())
""")
    assert found["weights"] == [[0.0, 0.0, 0.0]] * 2
