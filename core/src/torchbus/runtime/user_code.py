"""Where the user's loop is, and warnings that point at that line."""

from __future__ import annotations

import sys
import sysconfig
import warnings
from types import FrameType
from typing import Any

from torchbus.compat.python import current_frame
from torchbus.errors import redacted

INSIDE = ("torchbus", "pluggy", "torch.", "contextlib")
LIBRARIES = (
    "<frozen",
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)


class FrameMark:
    """Recognises a frame later, without keeping its variables alive."""

    def __init__(self, frame: FrameType) -> None:
        self._id, self._code = id(frame), frame.f_code

    def find(self) -> FrameType | None:
        """Return the frame while it runs in this thread, or None."""
        frame: FrameType | None = current_frame(1)
        while frame is not None and not (id(frame) == self._id and frame.f_code is self._code):
            frame = frame.f_back
        return frame


def users_frame() -> tuple[FrameType, int]:
    """Return the innermost frame of the user's code, and how many frames above the caller it is.

    User code is outside torchbus, its plugins and torch. It is also outside installed packages
    (``for batch in tqdm(loader)``), unless there is nothing else.
    """
    frames = outwards(current_frame(1))
    outside = [level for level, frame in enumerate(frames) if not is_inside(frame.f_globals)]
    mine = [one for one in outside if not frames[one].f_code.co_filename.startswith(LIBRARIES)]
    level = (mine or outside or [len(frames) - 1])[0]
    return frames[level], level


def caller() -> FrameType:
    """Return the frame that enters a session: the innermost outside torchbus and contextlib."""
    frames = outwards(current_frame(1))
    return next((one for one in frames if not is_inside(one.f_globals)), frames[-1])


def outwards(frame: FrameType | None) -> list[FrameType]:
    """Return a frame and its callers."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def is_inside(variables: dict[str, Any]) -> bool:
    """Whether global variables are those of torchbus, a plugin of this project or torch."""
    name = variables.get("__name__") or ""
    return name == "torch" or name.startswith(INSIDE)


def is_users_module(name: str) -> bool:
    """Whether a module is the user's: not torchbus, torch or an installed package."""
    if name == "__main__" or name == "torch" or name.startswith(INSIDE):
        return name == "__main__"
    path = getattr(sys.modules.get(name), "__file__", None) or ""
    return bool(path) and not path.startswith(LIBRARIES)


def warn(text: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warn as if the user's line had done it."""
    category = type(text) if isinstance(text, Warning) else category
    warnings.warn(redacted(str(text)), category, stacklevel=users_frame()[1] + 1)


def deprecated(what: str, since: str, instead: str) -> FutureWarning:
    """Return a warning of a removal. ``warn(deprecated(...))`` shows the user's line.

    ``since`` is the first version that warns, such as "0.2". ``instead`` says what to write. For an
    event, write ``hookspec(warn_on_impl=deprecated(...))``.
    """
    major, minor = since.split(".")
    return FutureWarning(
        f"{what} is deprecated since torchbus {since}, and will be removed in"
        f" {major}.{int(minor) + 1}: {instead}"
    )
