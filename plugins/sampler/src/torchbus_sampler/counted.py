"""Finds numbers that a training loop counts from its batches, which are one rank's share.

What the loop makes of them (``correct / total``) can't be known, so the loop is left as it is, and
its source is read for such counts, once for each loop.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

from torchbus.plugin import BackwardCall, Context, hookimpl, users_frame, warn

COUNTED = (
    "{} of the loop in line {} of {} come from this rank's share of the batches, and so does what"
    " the loop prints or decides by them. Take all ranks': {}"
)
HELD = (
    "{} of the loop in line {} of {} is filled from this rank's share of the batches, and enters"
    " the losses of later batches: each rank has another one. Fill it from all ranks' samples, as"
    " in `queue = torch.cat([queue, *s.all_gather(keys)])` or `mean = 0.9 * mean + 0.1 *"
    " s.reduce(x.mean(0))`"
)
GATHERING = {
    *("reduce", "all_reduce", "all_gather", "all_gather_object", "gather", "gather_object"),
    *("gather_in_order", "gather_for_metrics", "all_gather_into_tensor", "broadcast"),
}
COLLECTING = {"append", "extend", "update"}
JOINING = {"cat", "concat", "concatenate", "append", "hstack", "vstack"}
COMPARING = {"eq", "equal", "isclose"}
PREDICTING = {"argmax", "topk", "tolist", "numpy"}
SIZES = {"size", "shape"}
PLAIN = {"stack", "detach", "clone", "cpu", "values", "float", "double"}
OVER_ALL = {"sum", "mean"}
MEASURING = {"mean", "sum", "max", "min", "norm", "std", "var", "item"}
PRINTING = {"print", "log", "add_scalar", "set_description", "set_postfix", "write", "info"}
SHOWING = {*PRINTING, "append", "update"}


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
            warn(COUNTED.format(_quoted(found), place[1], place[0], remedy))
        if held:
            warn(HELD.format(_quoted(held), place[1], place[0]))


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
    scope = _function_of(loops[-1], module)
    if any(_called(node) in GATHERING for node in ast.walk(scope)):
        return None
    return CountFinder(loops[-1], scope, averages="torchmetrics" not in ast.dump(module))


def _function_of(loop: ast.For, module: ast.Module) -> ast.AST:
    """Return the innermost function around the loop, or the module."""
    around = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(inner is loop for inner in ast.walk(node))
    ]
    return around[-1] if around else module


class CountFinder:
    """Finds what a loop counts from its batches, and how to get all ranks'.

    ``averages``: whether ``x.update(value, n)`` averages, which torchmetrics does over all ranks.
    """

    def __init__(self, loop: ast.For, scope: ast.AST, averages: bool) -> None:
        self._loop = loop
        self._scope = scope
        self._averages = averages
        self._nodes = [inner for one in loop.body for inner in ast.walk(one)]
        self._batch = _names(_batch_in(loop))
        self._made = {
            node.id
            for node in self._nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }

    def found(self) -> dict[str, str]:
        sums: dict[str, str] = {}
        besides: dict[str, str] = {}
        for node in self._nodes:
            for name, value, joins in _grows(node):
                total = {name: f"s.reduce({name}, 'sum')"}
                if _collects(value, self._batch):
                    sums[name] = _gathered(name)
                elif _is_count(value) or (
                    _is_weighted(value) and _is_of_dataset(name, self._scope)
                ):
                    sums |= total
                elif _is_size(value):
                    besides |= total
                elif joins and _names(value) & self._batch:
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
        roots = {
            name
            for node in self._nodes
            if _called(node) == "backward" and isinstance(node, ast.Call)
            for name in _names(node.func)
        }
        values = [one for one in map(_assigned, self._nodes) if one is not None]
        filled = {name for name, value in values if name in _names(value) and _fills(value)}
        filled -= {name for name, value in values if name not in _names(value)}
        of_batch, in_loss = set(self._batch), set(roots)
        for _ in values:
            of_batch |= {name for name, value in values if _names(value) & of_batch - roots}
            in_loss |= set().union(*(_names(value) for name, value in values if name in in_loss))
        used = {
            name: value.lineno
            for one, value in reversed(values)
            if one in in_loss
            for name in _names(value)
        }
        rows = [row for row in map(_written, self._nodes) if row and row[0] not in self._made]
        filled |= {name for name, value in rows if value.lineno > used.get(name, value.lineno)}
        of_samples = {
            name
            for name, value in (*values, *rows)
            if name in filled and (_names(value) - {name} - roots) & of_batch
        }
        return sorted(of_samples & in_loss - roots - self._batch)

    def _of_samples(self, node: ast.AST) -> dict[str, str]:
        """What an inner loop over the batch's items counts: ``for t, p in zip(y, predicted)``."""
        if not isinstance(node, ast.For) or not _is_of_items(node.iter, self._batch):
            return {}
        inside = [inner for one in node.body for inner in ast.walk(one)]
        names = {_base(name) for inner in inside for name, _, _ in _grows(inner)}
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
            and _names(one.slice) & self._batch
        }

    def _averaged(self, node: ast.AST) -> dict[str, str]:
        """``meter.update(accuracy, len(x))``, of anything but a loss."""
        if not (
            self._averages
            and isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "update"
            and len(given := [*node.args, *(one.value for one in node.keywords)]) == 2
            and _is_size(given[1])
            and "loss" not in ast.unparse(given[0]).lower()
        ):
            return {}
        name = ast.unparse(node.func.value)
        return {name: f"s.reduce({name}.avg)"}

    def _read_early(self) -> dict[str, str]:
        """A loss that is added up or shown before its backward, which gives it all ranks' mean."""
        backwards = {
            name: node.lineno
            for node in reversed(self._nodes)
            if isinstance(node, ast.Call) and _called(node) == "backward"
            for name in _names(node.func)
        }
        shown = [
            inner
            for node in self._nodes
            if any(_grows(node)) or (isinstance(node, ast.Call) and _called(node) in SHOWING)
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
        nodes = list(_outside_loops(self._loop.body))
        roots = [one for node in nodes for one in _losses(node)]
        if not roots or not self._averages:
            return {}
        values = [pair for node in nodes for pair in _assignments(node)]
        added_up = _reached(_parts, roots, values)
        in_loss = _reached(_names, roots, values)
        to = [(one, name) for name, value in values for one in _names(value) - added_up]
        of_batch = _closed(self._batch, to) - added_up
        found = [
            name
            for name, value in _numbers_in(nodes, counted)
            if _base_name(value) not in in_loss and _names(value) & of_batch
        ]
        shown = {name for node in nodes for name in _shown(node)} - self._batch - in_loss
        found += [
            name
            for name, value in values
            if name in shown & of_batch and _is_measure(value, of_batch)
        ]
        return {name: f"s.reduce({name})" for name in found}


def _read_as_number(node: ast.AST) -> set[str]:
    """``loss.item()``, ``float(loss)``, ``total += loss.detach()``."""
    if isinstance(node, ast.Call) and _called(node) == "item":
        return _names(node.func)
    if isinstance(node, ast.Call) and _called(node) == "float":
        return {one.id for one in node.args if isinstance(one, ast.Name)}
    added = node.value if isinstance(node, ast.AugAssign) else None
    is_detached = isinstance(added, ast.Call) and _called(added) == "detach"
    return _names(added) if added is not None and is_detached else set()


def _assigned(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Return a variable and what it gets, if the node assigns one."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value
    return None


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield each variable and what it gets: ``a, b = model(x)`` gives the call to both."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            pair = isinstance(target, ast.Tuple | ast.List)
            for one in target.elts if pair else [target]:  # type: ignore[attr-defined]
                if isinstance(one, ast.Name):
                    yield one.id, node.value
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value


def _outside_loops(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in body:
        if not isinstance(node, ast.For | ast.While | ast.AsyncFor):
            yield node
            yield from _outside_loops(ast.iter_child_nodes(node))


def _closed(names: set[str], edges: Iterable[tuple[str, str]]) -> set[str]:
    """Return the names, and those that edges reach from them."""
    found, edges = set(names), list(edges)
    while further := {to for name, to in edges if name in found} - found:
        found |= further
    return found


def _reached(
    read: Callable[[ast.expr], set[str]],
    roots: Iterable[ast.expr],
    values: Iterable[tuple[str, ast.expr]],
) -> set[str]:
    """Return the variables that the roots are made of, by what ``read`` finds in an expression."""
    edges = [(name, one) for name, value in values for one in read(value)]
    return _closed(set().union(*map(read, roots)), edges)


def _losses(node: ast.AST) -> list[ast.expr]:
    """``(a + b).backward()``, ``scaler.scale(loss).backward()``, ``fabric.backward(loss)``."""
    if not isinstance(node, ast.Call) or _called(node) != "backward":
        return []
    receiver = node.func.value if isinstance(node.func, ast.Attribute) else node.func
    return [*node.args, receiver, *(receiver.args if isinstance(receiver, ast.Call) else ())]


def _parts(value: ast.expr) -> set[str]:
    """The variables that arithmetic alone makes a value of: ``a + 0.1 * b``, ``sum([a, b])``."""
    if isinstance(value, ast.Name):
        return {value.id}
    inner: list[ast.expr] = []
    if isinstance(value, ast.BinOp):
        inner = [value.left, value.right]
    elif isinstance(value, ast.UnaryOp):
        inner = [value.operand]
    elif isinstance(value, ast.List | ast.Tuple):
        inner = value.elts
    elif isinstance(value, ast.Call) and _called(value) in PLAIN | OVER_ALL:
        receiver = value.func.value if isinstance(value.func, ast.Attribute) else None
        is_number = _called(value) in PLAIN or not isinstance(receiver, ast.Name)
        inner = value.args + ([receiver] if receiver is not None and is_number else [])
    return set().union(*map(_parts, inner))


def _numbers_in(nodes: list[ast.AST], counted: set[str]) -> Iterator[tuple[str, ast.expr]]:
    """Yield what is read as a number, with its name: ``acc.item()``, ``acc = float(...)``."""
    names = {id(node.value): _assigned(node) for node in nodes if isinstance(node, ast.Assign)}
    counts = {
        id(inner)
        for node in nodes
        for name, _, _ in _grows(node)
        if name in counted
        for inner in ast.walk(node)
    }
    for node in nodes:
        value = None if id(node) in counts else _number_of(node)
        if value is not None:
            target = names.get(id(node))
            yield target[0] if target else ast.unparse(value), value


def _number_of(node: ast.AST) -> ast.expr | None:
    if not isinstance(node, ast.Call):
        return None
    value = None
    if _called(node) == "item" and isinstance(node.func, ast.Attribute):
        value = node.func.value
    elif _called(node) == "float" and len(node.args) == 1:
        value = node.args[0]
    return None if value is None or _is_size(value) or _called(value) == "item" else value


def _base_name(value: ast.expr) -> str:
    """Return the variable in ``loss``, ``losses["box"]``, ``out.loss.detach()``; "" of all else."""
    while True:
        if isinstance(value, ast.Subscript | ast.Attribute):
            value = value.value
        elif isinstance(value, ast.Call) and _called(value) in PLAIN and not value.args:
            value = value.func
        else:
            return value.id if isinstance(value, ast.Name) else ""


def _shown(node: ast.AST) -> set[str]:
    """The variables that a call shows as they are; ``s.log("acc", acc)`` reduces them."""
    if not isinstance(node, ast.Call) or _called(node) not in PRINTING:
        return set()
    given = [*node.args, *(one.value for one in node.keywords)]
    if not given or (_called(node) == "log" and isinstance(given[0], ast.Constant)):
        return set()
    values = given + [one for value in given for part in ast.walk(value) for one in _filled(part)]
    return {_base_name(one) for one in values if not _is_size(one)}


def _filled(part: ast.AST) -> list[ast.expr]:
    """``{"acc": acc}``, ``f"{acc}"``, ``"{}".format(acc)``, ``"%f" % acc``."""
    if isinstance(part, ast.Dict):
        return part.values
    if isinstance(part, ast.FormattedValue):
        return [part.value]
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
        return part.right.elts if isinstance(part.right, ast.Tuple) else [part.right]
    is_format = isinstance(part, ast.Call) and _called(part) == "format"
    return part.args if is_format else []  # type: ignore[attr-defined]


def _is_measure(value: ast.expr, of_batch: set[str]) -> bool:
    """``accuracy(out, y)``, ``(out == y).float().mean()``."""
    if not isinstance(value, ast.Call):
        return False
    is_function = isinstance(value.func, ast.Name)
    return _called(value) in MEASURING or (is_function and len(_names(value) & of_batch) > 1)


def _written(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Return a variable and what a part of it gets: ``queue[:, place : place + size] = keys.T``."""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
        return target.value.id, node.value  # type: ignore[attr-defined]
    return None


def _fills(value: ast.expr) -> bool:
    """``cat([name, ...])[-8:]``, ``0.9 * name + 0.1 * x``."""
    while isinstance(value, ast.Subscript):
        value = value.value
    joins = isinstance(value, ast.Call) and _called(value) in JOINING
    return joins or (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub))


def _batch_in(loop: ast.For) -> ast.expr:
    """Return what of the loop's target is the batch: not the number of ``enumerate``."""
    numbered = any(_called(node) == "enumerate" for node in ast.walk(loop.iter))
    is_pair = isinstance(loop.target, ast.Tuple) and len(loop.target.elts) == 2
    return loop.target.elts[1] if numbered and is_pair else loop.target  # type: ignore[attr-defined]


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _gathered(name: str) -> str:
    return f"s.all_gather_object({name})"


def _base(name: str) -> str:
    """Return the variable in ``matrix[t, p]`` or ``seen[t]``."""
    return name.partition("[")[0]


def _is_of_items(items: ast.expr, batch: set[str]) -> bool:
    calls = {_called(node) for node in ast.walk(items)}
    return bool(calls & {"zip", *PREDICTING}) and bool(
        _names(items) & batch or calls & {"argmax", "topk"}
    )


def _grows(node: ast.AST) -> Iterator[tuple[str, ast.expr, bool]]:
    """Yield the name that a node adds to, what it adds, and whether it joins whole tensors."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield ast.unparse(node.target), node.value, False
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        name = ast.unparse(node.targets[0])
        for call in ast.walk(node.value):
            if isinstance(call, ast.Call) and _called(call) in JOINING:
                joined = [inner for one in call.args for inner in getattr(one, "elts", [one])]
                others = [one for one in joined if ast.unparse(one) != name]
                if len(others) < len(joined):
                    yield name, ast.List(others, ast.Load()), True
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in COLLECTING
        and len(node.args) == 1
    ):
        added = node.args[0]
        yield (
            ast.unparse(node.func.value),
            ast.List([added], ast.Load()),
            isinstance(added, ast.Name),
        )


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
