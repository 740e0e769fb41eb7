"""Where the user's loop is, and warnings that point at that line."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

INSIDE = ("torchbus", "pluggy", "torch.", "contextlib")


def is_users(frame: FrameType) -> bool:
    """Whether the code is outside torchbus, its plugins, pluggy and torch."""
    return not (frame.f_globals.get("__name__") or "").startswith(INSIDE)


def users_frame() -> tuple[FrameType, int]:
    """The innermost frame outside torchbus, its plugins, pluggy and torch, and how many frames above the caller it is."""
    frame, level = sys._getframe(1), 0
    while frame.f_back is not None and not is_users(frame):
        frame, level = frame.f_back, level + 1
    return frame, level


def warn(text: str) -> None:
    """Warn as if the user's line had done it."""
    warnings.warn(text, stacklevel=users_frame()[1] + 1)
