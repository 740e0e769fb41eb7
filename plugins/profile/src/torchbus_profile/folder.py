"""The folder of one session's traces."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from torchbus.plugin import Context
from torchbus.trackers import chosen_by_rank0


def new_folder(session: Context, root: Path) -> Path:
    """Return the same new folder on all ranks, which all call it. It is not made yet."""
    return root / chosen_by_rank0(session, "profile/folder", _new_name)


def _new_name() -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
