"""Scripts that begin a session themselves are verified with its options."""

from __future__ import annotations

import pytest

from torchbus_verify.runs.script_session import (
    SESSION,
    ScriptBeginsSession,
    merged,
    stop_at_session,
)

from .verified import verified

HEAD = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import current, session

x = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))

def train(s):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in s.epochs(2):
        for (a,) in DataLoader(TensorDataset(x), batch_size=8, shuffle=True):
            optimizer.zero_grad()
            LOSS.backward()
            optimizer.step()
            s.log("norm", model[0].weight.norm())
"""
MEAN = "(model(a) - a.sum(1, keepdim=True)).square().mean()"
ENTERED = {
    "with": "with session(strategy='ddp', devices=2, gradient_clip_val=0.5) as s:\n    train(s)",
    "decorator": (
        "@session('clip', devices=8, checkpoint='kept', accumulate_grad_batches=2)\n"
        "def main():\n    train(current())\nmain()"
    ),
    "start": "s = session(strategy='fsdp', logger='local').start()\ntrain(s)\ns.close()",
}


@pytest.mark.parametrize("how", ENTERED)
def test_the_numbers_are_those_of_one_rank(how, tmp_path):
    verdict = verified(tmp_path, HEAD.replace("LOSS", MEAN) + ENTERED[how])
    assert verdict["status"] == 0, verdict
    assert verdict["headline"].startswith("the same numbers: 3 steps, 1 model"), verdict
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_wrong_weight_is_found(tmp_path):
    """The option of the session counts: it says that this mean is a sum."""
    source = HEAD.replace("LOSS", MEAN) + "with session(loss_reduction='sum') as s:\n    train(s)"
    verdict = verified(tmp_path, source)
    assert verdict["status"] == 2, verdict


def test_objects_are_refused(tmp_path):
    source = HEAD.replace("LOSS", MEAN) + "with session(object()) as s:\n    train(s)"
    verdict = verified(tmp_path, source)
    assert verdict["status"] == 3 and "begins a session with objects" in verdict["headline"]


def test_which_options_count():
    of_command = {"strategy": "ddp", "devices": 2, "batch": "global"}
    script = {"strategy": "fsdp", "devices": 8, "launch": "script", "logger": "wandb", "seed": 1}
    assert merged(of_command, frozenset(), script) == {
        "strategy": "fsdp",
        "devices": 2,
        "batch": "global",
        "logger": None,
        "seed": 1,
    }
    assert merged(of_command, frozenset({"strategy"}), script)["strategy"] == "ddp"
    assert merged(of_command, frozenset(), {"strategy": "ddp_spawn"})["strategy"] == "ddp"
    assert "batch" not in merged(of_command, frozenset(), {"strategy": "dp"})


def test_no_secret_is_in_the_record(tmp_path):
    with pytest.raises(ScriptBeginsSession):
        stop_at_session(tmp_path, ("log",), {"api_token": "0f9e8d7c6b5a4938", "seed": 1})
    assert (tmp_path / SESSION).read_text() == "(('log',), {'seed': 1})"
