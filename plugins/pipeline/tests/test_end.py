"""Stages begin different numbers of messages, so these do not show which rank is missing."""

from __future__ import annotations

from pathlib import Path

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "waits_at_the_end.py"


def test_a_stage_may_wait_for_another_while_the_first_has_ended() -> None:
    result = fork_script(SCRIPT, timeout_s=100)
    assert result.ok().stdout == "together"


MARKED = """
import copy, torch
from torch import nn
from torchbus import session
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    def forward(self, x):
        return self.layers(x)
with session(strategy="pipeline", devices=2, launch="fork") as s:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 4)).square().mean().backward()
    optimizer.step()
    parts, copied = model.layers, copy.deepcopy(model)
    del model
found = [vars(layer) for one in (parts, copied) for layer in one.modules()]
print([key for values in found for key in values if "torchbus" in key])
"""


def test_no_mark_is_left_on_copies_and_on_parts_of_a_model_that_has_gone():
    """A later session would take them for its own models, in each rank's order."""
    assert fork_script(MARKED).ok().stdout == "[]\n"
