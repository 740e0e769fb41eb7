"""Files of a rank on a host that does not see rank 0's folder: they go to rank 0 in what is said anyway."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import torch

from torchbus_checkpoint.disk import folder


def pack(name: str, content: Any) -> dict[str, folder.Entry]:
    """What is not to be written by this rank."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return {name: {"content": base64.b64encode(buffer.getvalue()).decode()}}


def unpack(partial: Path, theirs: dict[str, folder.Entry]) -> dict[str, folder.Entry]:
    """The sizes and checksums of a rank's files; those that came packed are written. Raises OSError."""
    return {
        name: folder.write_file(partial, name, base64.b64decode(entry["content"])) if "content" in entry else entry
        for name, entry in theirs.items()
    }
