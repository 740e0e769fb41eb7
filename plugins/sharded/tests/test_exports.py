"""Graphs of a divided model (torch.jit, torch.export), and of a copy."""

from __future__ import annotations

import pytest

from torchbus_testing.forking import fork_script

EXPORT = """
import sys
import torch
from torchbus import session

x = torch.randn(4, 3)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
with session(strategy="fsdp", devices=2):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(x).mean().backward()
    optimizer.step()
    if sys.argv[1] == "copy":
        copy = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
        copy.load_state_dict(model.state_dict())
        inside = torch.jit.trace(copy, x)(x)
    elif sys.argv[1] == "trace":
        torch.jit.trace(model, x)
    elif sys.argv[1] == "script":
        torch.jit.script(model)
    else:
        torch.export.export(model, (x,))
assert torch.equal(inside, torch.jit.trace(model, x)(x))
"""


@pytest.mark.parametrize(
    ("how", "name"), [("trace", "torch.jit"), ("script", "torch.jit"), ("export", "torch.export")]
)
def test_an_export_of_a_divided_model_is_refused(how: str, name: str) -> None:
    result = fork_script(EXPORT, how)
    assert result.status and f"{name} of a model under strategy='fsdp'" in result.stderr


def test_a_copy_is_exported_as_the_refusal_says() -> None:
    fork_script(EXPORT, "copy").ok()
