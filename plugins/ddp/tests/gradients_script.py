"""How scripts run that test gradients, on two ranks."""

from __future__ import annotations

from textwrap import dedent, indent
from typing import Any

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result

HEAD = """
import json, torch
from torch import nn
from torch.nn.functional import mse_loss
from torchbus.bus.base import hookimpl
from torchbus import session
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
data = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(1))  # a batch for each rank
found = {}
"""
TAIL = """
print(json.dumps(found))
"""


def run(body: str, options: str = "", before: str = "", fails: bool = False) -> Result:
    """Run a block on two ranks; ``options`` are further arguments of the session."""
    line = f'with session({options + ", " if options else ""}strategy="ddp", devices=2, launch="fork") as s:'
    result = fork_script("\n".join([HEAD, before, line, indent(dedent(body), "    "), TAIL]))
    assert fails or result.ok()
    return result


def facts(result: Result) -> dict[str, Any]:
    return result.json()
