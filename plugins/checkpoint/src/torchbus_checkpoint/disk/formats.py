"""The number of a checkpoint's format, and what wrote it. This version reads its own format and all older ones.

==  =====================================================================================================
1   the first one
2   ``written_by``; of an open window of accumulation and of compressed gradients, what each rank has of it
==  =====================================================================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torchbus.plugin import VERSION

from torchbus_checkpoint.errors import CheckpointError, NewerFormat

FORMAT = 2


def facts() -> dict[str, Any]:
    """What the manifest says of the program that writes it."""
    return {"version": FORMAT, "written_by": {"torchbus": VERSION, "torch": str(torch.__version__)}}


def check(content: dict[str, Any], folder: Path) -> None:
    """Raises NewerFormat, with the version to install, and CheckpointError where there is no format number."""
    number = content.get("version")
    if type(number) is not int or number < 1:
        raise CheckpointError(f"checkpoint {folder} is damaged: its format is {number!r}, which is no number of a format")
    if number > FORMAT:
        writer = written_by(content).get("torchbus")
        remedy = f"pip install 'torchbus-checkpoint>={writer}'" if writer else "install the version that wrote it"
        raise NewerFormat(
            f"checkpoint {folder} has format {number}, written by torchbus {writer or 'of a later version'}; this is torchbus "
            f"{VERSION}, which reads formats 1 to {FORMAT}: {remedy}"
        )


def written_by(content: dict[str, Any]) -> dict[str, str]:
    """Versions by name of the program, as far as a manifest says."""
    found = content.get("written_by", {"torch": content.get("torch")})
    return {name: version for name, version in found.items() if isinstance(version, str)} if isinstance(found, dict) else {}
