"""Finds numbers that a training loop counts from its batches, which are one rank's share.

What the loop makes of them (``correct / total``) can't be known, so the loop is left as it is, and
its source is read for such counts, once for each loop.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator
from types import FrameType

from torchbus.plugin import BackwardCall, Context, hookimpl, users_frame, warn

from torchbus_sampler import loop_source as source

COUNTED = (
    "the loop in line {} of {} computes {} from this rank's share of the batches, so what it prints"
    " or decides from it covers one rank only. For all ranks, use {} (s is the session:"
    " torchbus.current())"
)
HELD = (
    "the loop in line {} of {} fills {} from this rank's share of the batches, and uses it in the"
    " losses of later batches, so it differs between ranks. Fill it from the samples of all ranks,"
    " as in `queue = torch.cat([queue, *s.all_gather(keys)])` or `mean = 0.9 * mean + 0.1 *"
    " s.reduce(x.mean(0))` (s is the session: torchbus.current())"
)
GATHERING = {
    *("reduce", "all_reduce", "all_gather", "all_gather_object", "gather", "gather_object"),
    *("gather_in_order", "gather_for_metrics", "all_gather_into_tensor", "broadcast"),
}
REDUCING_ALONE = {"einops", "functools", "np", "numpy"}
COMPARING = {"eq", "equal", "isclose"}
PREDICTING = {"argmax", "topk", "tolist", "numpy"}
MEASURING = {"mean", "sum", "max", "min", "norm", "std", "var", "item"}
SHOWING = {*source.PRINTING, "append", "update"}


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
        finder = finder_of(*place)
        held = [] if finder is None else finder.held()
        counted = {} if finder is None else finder.found()
        found = {name: remedy for name, remedy in counted.items() if name not in held}
        if found:
            remedy = ", ".join(found.values())
            warn(COUNTED.format(place[1], place[0], _quoted(found), remedy))
        if held:
            warn(HELD.format(place[1], place[0], _quoted(held)))


def _quoted(names: Iterable[str]) -> str:
    return " and ".join(f"{name!r}" for name in names)


def _place(frame: FrameType) -> tuple[str, int]:
    return frame.f_code.co_filename, frame.f_lineno


def finder_of(file: str, line: int) -> CountFinder | None:
    """Return the finder for a loop, or None if there is none, or it combines anything."""
    try:
        module = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
    loops = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.For) and node.lineno <= line <= (node.iter.end_lineno or line)
    ]
    if not loops:
        return None
    scope = source.function_of(loops[-1], module)
    if any(map(_gathers, ast.walk(scope))):
        return None
    return CountFinder(loops[-1], scope, averages="torchmetrics" not in ast.dump(module))


def _gathers(node: ast.AST) -> bool:
    """Whether it combines over ranks. ``reduce`` alone does not: einops and functools have one."""
    name = source.called(node)
    function = node.func if isinstance(node, ast.Call) else None
    owner = function.value if isinstance(function, ast.Attribute) else None
    is_other = owner is None or (isinstance(owner, ast.Name) and owner.id in REDUCING_ALONE)
    return name in GATHERING and not (name == "reduce" and is_other)


class CountFinder:
    """Finds what a loop counts from its batches, and how to get all ranks'.

    ``averages``: whether ``x.update(value, n)`` averages, which torchmetrics does over all ranks.
    """

    def __init__(self, loop: ast.For, scope: ast.AST, averages: bool) -> None:
        self._loop = loop
        self._scope = scope
        self._averages = averages
        self._nodes = [inner for one in loop.body for inner in ast.walk(one)]
        self._batch = source.names(source.batch_in(loop))
        self._made = {
            node.id
            for node in self._nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }

    def found(self) -> dict[str, str]:
        sums: dict[str, str] = {}
        besides: dict[str, str] = {}
        grown = {name for node in self._nodes for name, *_ in source.grows(node)}
        for node in self._nodes:
            for name, value, joins in source.grows(node):
                total = {name: f"s.reduce({name}, 'sum')"}
                if _collects(value, self._batch):
                    sums[name] = _gathered(name)
                elif _is_count(value) or (
                    _is_weighted(value) and _is_over_more(name, grown, self._scope)
                ):
                    sums |= total
                elif source.is_size(value):
                    besides |= total
                elif joins and source.names(value) & self._batch:
                    besides[name] = _gathered(name)
            sums |= self._of_samples(node) | self._by_index(node) | self._averaged(node)
        sums |= self._read_early()
        counted = sums | besides if sums else {}
        return self._read_of_batch(set(counted)) | counted

    def held(self) -> list[str]:
        """Return variables that the loop fills from its batches, and that enter its losses.

        A hidden state, which the model returns, is of this rank's own samples. What is written to
        before it is used is of the same batch.
        """
        losses = [one for node in self._nodes for one in source.losses(node)]
        roots = set().union(*map(source.names, losses))
        values = [pair for node in self._nodes for pair in source.unpacked(node)]
        filled = {name for name, value in values if name in source.names(value) and _fills(value)}
        filled -= {name for name, value in values if name not in source.names(value)}
        in_loss = source.reached(source.names, losses, values)
        of_batch = source.made_of(self._batch, values, roots)
        used = {
            name: value.lineno
            for one, value in reversed(values)
            if one in in_loss
            for name in source.names(value)
        }
        rows = [row for row in map(source.written, self._nodes) if row and row[0] not in self._made]
        filled |= {name for name, value in rows if value.lineno > used.get(name, value.lineno)}
        of_samples = {
            name
            for name, value in (*values, *rows)
            if name in filled and (source.names(value) - {name} - roots) & of_batch
        }
        return sorted(of_samples & in_loss - roots - self._batch)

    def _of_samples(self, node: ast.AST) -> dict[str, str]:
        """What an inner loop over the batch's items counts: ``for t, p in zip(y, predicted)``."""
        if not isinstance(node, ast.For) or not _is_of_items(node.iter, self._batch):
            return {}
        inside = [inner for one in node.body for inner in ast.walk(one)]
        names = {_base(name) for inner in inside for name, _, _ in source.grows(inner)}
        return {name: _gathered(name) for name in sorted(names - self._made)}

    def _by_index(self, node: ast.AST) -> dict[str, str]:
        """Rows that the samples of the batch have: ``seen[index] = ...``."""
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AugAssign):
            targets = [node.target]
        return {
            one.value.id: _gathered(one.value.id)
            for one in targets
            if isinstance(one, ast.Subscript)
            and isinstance(one.value, ast.Name)
            and one.value.id not in self._made | self._batch
            and source.names(one.slice) & self._batch
        }

    def _averaged(self, node: ast.AST) -> dict[str, str]:
        """``meter.update(accuracy, len(x))``, of anything but a loss."""
        if not (
            self._averages
            and isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "update"
            and len(given := [*node.args, *(one.value for one in node.keywords)]) == 2
            and source.is_size(given[1])
            and "loss" not in ast.unparse(given[0]).lower()
        ):
            return {}
        name = ast.unparse(node.func.value)
        return {name: f"s.reduce({name}.avg)"}

    def _read_early(self) -> dict[str, str]:
        """A loss that is added up or shown before its backward, which gives it all ranks' mean."""
        backwards = {
            name: one.lineno
            for node in reversed(self._nodes)
            for one in source.losses(node)
            for name in source.parts(one)
        }
        shown = [
            inner
            for node in self._nodes
            if any(source.grows(node)) or source.called(node) in SHOWING
            for inner in ast.walk(node)
        ]
        return {
            name: f"{name}.item() after {name}.backward()"
            for node in shown
            for name in _read_as_number(node)
            if node.lineno < backwards.get(name, 0)  # type: ignore[attr-defined]
        }

    def _read_of_batch(self, counted: set[str]) -> dict[str, str]:
        """A number of one batch that is read or shown, and is neither the loss nor a part of it.

        ``accuracy.item()``, ``print(top1(out, y))``. Loops inside the loop are left out: they
        evaluate, or go on with what they were given.
        """
        nodes = list(source.outside_loops(self._loop.body))
        roots = [one for node in nodes for one in source.losses(node)]
        if not roots or not self._averages:
            return {}
        values = [pair for node in nodes for pair in source.assignments(node)]
        added_up = source.reached(source.parts, roots, values)
        in_loss = source.reached(source.names, roots, values)
        of_batch = source.made_of(self._batch, values, added_up) - added_up
        found = [
            name
            for name, value in _numbers_in(nodes, counted)
            if source.base_name(value) not in in_loss and source.names(value) & of_batch
        ]
        shown = {name for node in nodes for name in source.shown(node)} - self._batch - in_loss
        found += [
            name
            for name, value in values
            if name in shown & of_batch and _is_measure(value, of_batch)
        ]
        return {name: f"s.reduce({name})" for name in found}


def _read_as_number(node: ast.AST) -> set[str]:
    """``loss.item()``, ``float(loss)``, ``total += loss.detach()``."""
    value = source.number_of(node)
    if value is not None:
        return source.names(value)
    added = node.value if isinstance(node, ast.AugAssign) else None
    is_detached = isinstance(added, ast.Call) and source.called(added) == "detach"
    return source.names(added) if added is not None and is_detached else set()


def _numbers_in(nodes: list[ast.AST], counted: set[str]) -> Iterator[tuple[str, ast.expr]]:
    """Yield what is read as a number, with its name: ``acc.item()``, ``acc = float(...)``."""
    names = {
        id(node.value): source.assigned(node) for node in nodes if isinstance(node, ast.Assign)
    }
    counts = {
        id(inner)
        for node in nodes
        for name, _, _ in source.grows(node)
        if name in counted
        for inner in ast.walk(node)
    }
    for node in nodes:
        value = None if id(node) in counts else source.number_of(node)
        if value is not None and not source.is_size(value) and source.called(value) != "item":
            target = names.get(id(node))
            yield target[0] if target else ast.unparse(value), value


def _is_measure(value: ast.expr, of_batch: set[str]) -> bool:
    """``accuracy(out, y)``, ``(out == y).float().mean()``."""
    if not isinstance(value, ast.Call):
        return False
    is_function = isinstance(value.func, ast.Name)
    return source.called(value) in MEASURING or (
        is_function and len(source.names(value) & of_batch) > 1
    )


def _fills(value: ast.expr) -> bool:
    """``cat([name, ...])[-8:]``, ``0.9 * name + 0.1 * x``."""
    while isinstance(value, ast.Subscript):
        value = value.value
    joins = isinstance(value, ast.Call) and source.called(value) in source.JOINING
    return joins or (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub))


def _gathered(name: str) -> str:
    return f"s.all_gather_object({name})"


def _base(name: str) -> str:
    """Return the variable in ``matrix[t, p]`` or ``seen[t]``."""
    return name.partition("[")[0]


def _is_of_items(items: ast.expr, batch: set[str]) -> bool:
    calls = {source.called(node) for node in ast.walk(items)}
    return bool(calls & {"zip", *PREDICTING}) and bool(
        source.names(items) & batch or calls & {"argmax", "topk"}
    )


def _is_count(value: ast.expr) -> bool:
    """A sum of what is equal: ``(prediction == target).sum()``."""
    nodes = list(ast.walk(value))
    compares = any(
        isinstance(node, ast.Compare) or source.called(node) in COMPARING for node in nodes
    )
    return compares and any(source.called(node) == "sum" for node in nodes)


def _is_weighted(value: ast.expr) -> bool:
    """``loss.item() * len(x)``."""
    return (
        isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Mult)
        and (source.is_size(value.left) or source.is_size(value.right))
    )


def _is_over_more(name: str, grown: set[str], scope: ast.AST) -> bool:
    """Whether the function divides it by a number that the loop does not count, as by the size of
    the data set: that is of all ranks.
    """
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and name in {ast.unparse(inner) for inner in ast.walk(node.left)}
        and grown.isdisjoint(ast.unparse(inner) for inner in ast.walk(node.right))
        for node in ast.walk(scope)
    )


def _collects(value: ast.expr, batch: set[str]) -> bool:
    """A list of predictions or targets grows: ``targets += y.tolist()``."""
    nodes = list(ast.walk(value))
    if any(source.called(node) in ("item", "float", "len", "sum", "mean") for node in nodes):
        return False
    predicts = any(source.called(node) in PREDICTING for node in nodes)
    of_batch = any(isinstance(node, ast.Name) and node.id in batch for node in nodes)
    return predicts and (
        of_batch or any(source.called(node) in ("argmax", "topk") for node in nodes)
    )
