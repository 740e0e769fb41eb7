"""For tests: a block of code on several ranks, and the facts that rank 0 has found."""

from __future__ import annotations

from textwrap import dedent, indent
from typing import Any

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result

HEAD = """
import json, torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchbus import session
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
found = {}
"""


def run(
    body: str, options: str = "", before: str = "", ranks: int = 2, strategy: str = "ddp"
) -> Result:
    """Run ``body`` as the block of a session; ``options`` are further arguments, ``before`` stands
    before the block.
    """
    line = f'with session({options + ", " if options else ""}strategy="{strategy}", devices={ranks}, launch="fork") as s:'
    parts = [HEAD, dedent(before), line, indent(dedent(body), "    "), "print(json.dumps(found))"]
    return fork_script("\n".join(parts))


def facts(
    body: str, options: str = "", before: str = "", ranks: int = 2, strategy: str = "ddp"
) -> dict[str, Any]:
    """The ``found`` of rank 0, after a run that must succeed."""
    return dict(run(body, options, before, ranks, strategy).json())
