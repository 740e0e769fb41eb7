"""The script's own frames and files, and warnings of what may make its gradients wrong."""

from __future__ import annotations

import ast
import linecache
import re
import sys
import warnings
from functools import cache
from types import FrameType

from torchbus.compat.python import current_frame
from torchbus.errors import redacted
from torchbus.plugin import users_frame, warn
from torchbus.runtime.user_code import is_users_module, outwards

Place = tuple[str, int]
"""A file, and the number of a line."""


def place_of(frame: FrameType) -> Place:
    """Return the line that runs in a frame."""
    return frame.f_code.co_filename, frame.f_lineno


def users_frames(outermost: FrameType | None) -> list[FrameType]:
    """Return the frames of the user's code, innermost first, up to that frame."""
    frames = outwards(current_frame(1))
    if outermost in frames:
        frames = frames[: frames.index(outermost) + 1]
    return [frame for frame in frames if is_users_module(frame.f_globals.get("__name__") or "")]


def parsed(file: str) -> ast.Module:
    """Parse a file of the user's code. It is empty if it can't be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@cache
def divides_by_multiple(factor: int) -> bool:
    """Whether a script on the stack divides by this number of times something: ``/ (2 * len(x))``.

    Or by something else that comes to the same: ``0.5 / len(x)``.
    """
    files = {frame.f_code.co_filename for frame in users_frames(None)}
    return any(_is_multiple(node, factor) for file in files for node in ast.walk(parsed(file)))


def _is_multiple(node: ast.AST, factor: int) -> bool:
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        return _has_factor(node.value, factor)
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
        return False
    return _has_factor(node.right, factor) or _is_number(node.left, 1 / factor)


def _has_factor(divisor: ast.expr, factor: int) -> bool:
    return isinstance(divisor, ast.BinOp) and any(
        _is_number(side, factor) for side in (divisor.left, divisor.right)
    )


def _is_number(node: ast.expr, number: float) -> bool:
    return isinstance(node, ast.Constant) and node.value == number


def warn_of_gradients(text: str) -> None:
    """Warn of what may make gradients wrong.

    A script that ignores all warnings still gets it, on stderr; a filter that names its words hides
    it.
    """
    warn(text)
    text = redacted(text)
    if _ignores_everything(text):
        frame = users_frame()[0]
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        print(f"{where}: torchbus: your gradients may be wrong: {text}", file=sys.stderr)


def _ignores_everything(text: str) -> bool:
    """Whether the first of the script's filters that fits names no message, and ignores it."""
    fits = [
        (action, message)
        for action, message, category, _, _ in warnings.filters
        if issubclass(UserWarning, category) and (message is None or _matches(message, text))
    ]
    return bool(fits) and fits[0] == ("ignore", None)


def _matches(message: object, text: str) -> bool:
    """Filters hold a pattern, or, if Python itself made them, a plain text."""
    pattern = re.compile(message, re.I) if isinstance(message, str) else message
    return isinstance(pattern, re.Pattern) and pattern.match(text) is not None
