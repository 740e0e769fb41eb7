"""The script's own frames and files, and warnings of what may make its gradients wrong."""

from __future__ import annotations

import ast
import linecache
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import cast

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
    """Return the frames of the user's code, innermost first, up to ``outermost``."""
    frames = outwards(current_frame(1))
    if outermost in frames:
        frames = frames[: frames.index(outermost) + 1]
    return [frame for frame in frames if is_users_module(frame.f_globals.get("__name__") or "")]


def parsed(file: str) -> ast.Module:
    """Parse a file of the user's code. The module is empty if the file can't be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def divides_by_multiple(factor: int) -> bool:
    """Whether a script on the stack divides by ``factor`` times a length.

    Examples are ``/ (2 * len(x))``, ``/ (m * 2)`` with ``m = x.shape[0]``, and ``0.5 / x.size(0)``.
    """
    files = {frame.f_code.co_filename for frame in users_frames(None)}
    nodes = [node for file in files for node in ast.walk(parsed(file))]
    names = {
        name.id
        for node in nodes
        if isinstance(node, ast.Assign) and _is_length(node.value, set())
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and (
            _is_multiple(node.right, factor, names)
            or (_is_constant(node.left, 1 / factor) and _is_length(node.right, names))
        )
        for node in nodes
    )


def _is_multiple(node: ast.expr, factor: int, names: set[str]) -> bool:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    sides = ((node.left, node.right), (node.right, node.left))
    return any(_is_constant(one, factor) and _is_length(other, names) for one, other in sides)


def _is_constant(node: ast.expr, number: float) -> bool:
    return isinstance(node, ast.Constant) and node.value == number


def _is_length(node: ast.expr, names: set[str]) -> bool:
    """Whether an expression is one of ``names``, or is like ``len(x)`` or ``x.shape[0]``."""
    if isinstance(node, ast.Name):
        return node.id in names
    inner = node.func if isinstance(node, ast.Call) else getattr(node, "value", node)
    called = inner.id if isinstance(inner, ast.Name) else getattr(inner, "attr", "")
    return called in ("len", "size", "shape")


def warn_of_gradients(text: str) -> None:
    """Warn of what may make gradients wrong.

    A script that ignores all warnings still gets the text, on stderr. A filter that names words of
    the text hides it.
    """
    warn(text)
    text = redacted(text)
    if _ignores_everything(text):
        frame = users_frame()[0]
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        print(f"{where}: torchbus: your gradients may be wrong: {text}", file=sys.stderr)


def _ignores_everything(text: str) -> bool:
    """Whether the first filter that fits ignores the warning, and does not name a message."""
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


@contextmanager
def muted(message: str, category: type[Warning]) -> Iterator[None]:
    """Ignore a library's warning. The script's own filters stay, also those that it adds."""
    before = list(warnings.filters)
    warnings.filterwarnings("ignore", message, category)
    mine = warnings.filters[0]
    try:
        yield
    finally:
        # the script may have the same filter, or have reset them
        if mine not in before and mine in warnings.filters:
            cast("list[object]", warnings.filters).remove(mine)
