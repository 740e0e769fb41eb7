"""Numbers that a training loop counts from its batches: they are of this rank's share.

What the loop makes of them (``correct / total``) can't be known, so the loop is left as it is, and
its source is read for such counts, once for each loop.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from types import FrameType

from torchbus.plugin import BackwardCall, Context, hookimpl, users_frame, warn

COUNTED = (
    "{} of the loop in line {} of {} come from this rank's share of the batches, and so does what"
    " is printed of them. Take all ranks': {}"
)
GATHERING = {
    *("reduce", "all_reduce", "all_gather", "all_gather_object", "gather", "gather_object"),
    *("gather_in_order", "gather_for_metrics", "all_gather_into_tensor", "broadcast"),
}
COLLECTING = {"append", "extend"}
COMPARING = {"eq", "equal", "isclose"}
PREDICTING = {"argmax", "topk", "tolist", "numpy"}
SIZES = {"size", "shape"}


class CountedMetrics:
    """Says once, at the first backward of a loop, which of its numbers are of one rank."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._seen: set[tuple[str, int]] = set()
        self._begun: tuple[str, int] | None = None

    def begins(self) -> None:
        """A pass over divided data begins, in the line that runs now."""
        if self._session.is_main:
            frame, _ = users_frame()
            self._begun = _place(frame)

    @hookimpl
    def after_backward(self, call: BackwardCall) -> None:
        if self._begun is None:
            return
        place, self._begun = self._begun, None
        if place in self._seen:
            return
        self._seen.add(place)
        found = counted(*place)
        if found:
            names = " and ".join(f"{name!r}" for name in found)
            remedy = ", ".join(found.values())
            warn(COUNTED.format(names, place[1], place[0], remedy))


def _place(frame: FrameType) -> tuple[str, int]:
    return frame.f_code.co_filename, frame.f_lineno


def counted(file: str, line: int) -> dict[str, str]:
    """Return what the loop that begins in this line counts from its batches: how to get all ranks'.

    Nothing if its function combines anything over ranks.
    """
    try:
        module = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    loops = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.For) and node.lineno <= line <= (node.iter.end_lineno or line)
    ]
    if not loops:
        return {}
    scope = _function_of(loops[-1], module)
    if any(_called(node) in GATHERING for node in ast.walk(scope)):
        return {}
    return _counts(loops[-1], scope)


def _function_of(loop: ast.For, module: ast.Module) -> ast.AST:
    """Return the innermost function around the loop, or the module."""
    around = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(inner is loop for inner in ast.walk(node))
    ]
    return around[-1] if around else module


def _counts(loop: ast.For, scope: ast.AST) -> dict[str, str]:
    batch = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    sums: dict[str, str] = {}
    sizes: dict[str, str] = {}
    for node in (inner for statement in loop.body for inner in ast.walk(statement)):
        for name, value in _grows(node):
            total = {name: f"s.reduce({name}, 'sum')"}
            if _collects(value, batch):
                sums[name] = f"s.all_gather_object({name})"
            elif _is_count(value) or (_is_weighted(value) and _is_of_dataset(name, scope)):
                sums |= total
            elif _is_size(value):
                sizes |= total
    return sums | sizes if sums else {}


def _grows(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name that a node adds to, and what it adds."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield ast.unparse(node.target), node.value
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in COLLECTING
        and len(node.args) == 1
    ):
        yield ast.unparse(node.func.value), ast.List([node.args[0]], ast.Load())


def _called(node: ast.AST) -> str:
    """Return the last name of what a node calls, or ""."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_count(value: ast.expr) -> bool:
    """A sum of what is equal: ``(prediction == target).sum()``."""
    nodes = list(ast.walk(value))
    compares = any(isinstance(node, ast.Compare) or _called(node) in COMPARING for node in nodes)
    return compares and any(_called(node) == "sum" for node in nodes)


def _is_size(value: ast.expr) -> bool:
    return any(
        _called(node) == "len" or (isinstance(node, ast.Attribute) and node.attr in SIZES)
        for node in ast.walk(value)
    )


def _is_weighted(value: ast.expr) -> bool:
    """``loss.item() * len(x)``."""
    return (
        isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Mult)
        and (_is_size(value.left) or _is_size(value.right))
    )


def _is_of_dataset(name: str, scope: ast.AST) -> bool:
    """Whether the function divides it by the size of a whole data set."""
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and name in {ast.unparse(inner) for inner in ast.walk(node.left)}
        and any(
            _called(inner) == "len" and ast.unparse(inner).endswith(("dataset)", "set)", "data)"))
            for inner in ast.walk(node.right)
        )
        for node in ast.walk(scope)
    )


def _collects(value: ast.expr, batch: set[str]) -> bool:
    """A list of predictions or targets grows: ``targets += y.tolist()``."""
    nodes = list(ast.walk(value))
    if any(_called(node) in ("item", "float", "len", "sum", "mean") for node in nodes):
        return False
    predicts = any(_called(node) in PREDICTING for node in nodes)
    of_batch = any(isinstance(node, ast.Name) and node.id in batch for node in nodes)
    return predicts and (of_batch or any(_called(node) in ("argmax", "topk") for node in nodes))
