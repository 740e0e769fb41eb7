"""Where the user's loop is, and warnings that point at that line."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

INSIDE = ("torchbus", "pluggy", "torch.", "contextlib")


class Mark:
    """A frame to be known again, without keeping its variables alive after its end."""

    def __init__(self, frame: FrameType) -> None:
        self._id, self._code = id(frame), frame.f_code

    def find(self) -> FrameType | None:
        """The frame, while it runs in this thread."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not (id(frame) == self._id and frame.f_code is self._code):
            frame = frame.f_back
        return frame


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
