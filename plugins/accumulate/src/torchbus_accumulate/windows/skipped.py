"""What the loop gets for a step that is not taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torchbus.plugin import Answer

NOTHING = Answer()


def skipped(closure: Callable[[], Any] | None) -> Answer:
    """The value of its closure, which runs all the same."""
    if closure is None:
        return NOTHING
    with torch.enable_grad():
        return Answer(closure())
