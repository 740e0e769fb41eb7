"""Scripts under ``torchbus verify``, in a fork that has torch imported."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from torchbus_testing.forking import fork_script

COMMAND = """
import sys
from torchbus_verify.command import main
raise SystemExit(main(sys.argv[1:]))
"""
LOOP = """
import sys
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).mean().backward()
    optimizer.step()
"""


def verified(folder: Path, source: str, *words: object) -> dict[str, Any]:
    """The verdict on a script that is written into the folder."""
    (folder / "train.py").write_text(textwrap.dedent(source))
    result = fork_script(
        COMMAND, "--json", "--steps", "3", "train.py", *words, cwd=folder, timeout_s=200
    )
    verdict: dict[str, Any] = json.loads(result.stdout)
    assert result.status == verdict["status"], result.stderr
    return verdict
