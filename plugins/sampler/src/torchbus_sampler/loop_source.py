"""Reads single expressions of a training loop: what they assign, count, read or show."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterable, Iterator

COLLECTING = {"append", "extend", "update"}
JOINING = {"cat", "concat", "concatenate", "append", "hstack", "vstack"}
KEEPING = {"retain_graph", "create_graph"}
SIZES = {"size", "shape"}
ROWS = re.compile(r"len\(|\.shape\[0\]|\.size\(0\)|\.numel\(\)")
PLAIN = {"stack", "detach", "clone", "cpu", "values", "float", "double"}
OVER_ALL = {"sum", "mean"}
STATISTICS = {
    *("mean", "std", "var", "max", "min", "amax", "amin", "norm", "median", "quantile"),
    *("nanmean", "nanmedian", "nanquantile"),
}
ARGSORTS = {"argsort", "argpartition", "sorted"}
SORTS = {"topk", "sort", "kthvalue", "quantile", "percentile", "median"}
NUMBER_FIRST = {"norm", "quantile", "percentile", "topk", "kthvalue"}
DETACHING = {"detach", "numpy", "tolist", "item"}
LIBRARIES = {"torch", "np", "numpy", "F"}
GATHERING = {
    *("reduce", "all_reduce", "all_gather", "all_gather_object", "gather", "gather_object"),
    *("gather_in_order", "gather_for_metrics", "all_gather_into_tensor", "broadcast"),
}
REDUCING_ALONE = {"einops", "functools", "np", "numpy"}
REDUCING = {"on_epoch", "sync_dist"}  # of s.log
COMPARING = {"eq", "ne", "lt", "le", "gt", "ge", "equal", "isclose"}
PREDICTING = {"argmax", "topk", "tolist", "numpy"}
MEASURING = {"mean", "sum", "max", "min", "norm", "std", "var", "item"}
PRINTING = {"print", "log", "add_scalar", "set_description", "set_postfix", "write", "info"}


def variable(node: ast.AST) -> str:
    """Return the name of ``x`` or ``self.x``, or "" for another expression."""
    if isinstance(node, ast.Name):
        return "" if node.id == "self" else node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"self.{node.attr}" if node.value.id == "self" else ""
    return ""


def names(node: ast.AST) -> set[str]:
    return {
        name
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name | ast.Attribute) and (name := variable(inner))
    }


def called(node: ast.AST) -> str:
    """Return the last name of the function that a node calls, or ""."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def owner_and_method(call: ast.Call) -> tuple[str, str]:
    """Return the variable that is called, or whose method: ``criterion(x)``, ``pool.query(x)``."""
    if variable(call.func):
        return variable(call.func), "__call__"
    if isinstance(call.func, ast.Attribute):
        return variable(call.func.value), call.func.attr
    return "", ""


def is_next(node: ast.AST) -> bool:
    return called(node) == "next"


def is_size(value: ast.expr) -> bool:
    return any(
        called(node) in ("len", "numel") or (isinstance(node, ast.Attribute) and node.attr in SIZES)
        for node in ast.walk(value)
    )


def is_rows(value: ast.AST) -> bool:
    """Whether a value has a number of samples in it: ``len(x)``, ``x.size(0)``, ``x.shape[0]``."""
    return ROWS.search(ast.unparse(value)) is not None


def base_name(value: ast.expr) -> str:
    """Return the variable in ``loss``, ``losses["box"]``, ``out.loss.detach()``, or ""."""
    while not variable(value):
        if isinstance(value, ast.Subscript | ast.Attribute):
            value = value.value
        elif isinstance(value, ast.Call) and called(value) in PLAIN and not value.args:
            value = value.func
        else:
            return ""
    return variable(value)


def gathers(node: ast.AST) -> bool:
    """Whether a node combines over ranks. Not every ``reduce`` does: functools has one, too."""
    name = called(node)
    function = node.func if isinstance(node, ast.Call) else None
    owner = function.value if isinstance(function, ast.Attribute) else None
    is_other = owner is None or (isinstance(owner, ast.Name) and owner.id in REDUCING_ALONE)
    return name in GATHERING and not (name == "reduce" and is_other)


def batch_in(loop: ast.For) -> ast.expr:
    """Return the part of the loop's target that is the batch, without the ``enumerate`` number."""
    numbered = any(called(node) == "enumerate" for node in ast.walk(loop.iter))
    is_pair = isinstance(loop.target, ast.Tuple) and len(loop.target.elts) == 2
    return loop.target.elts[1] if numbered and is_pair else loop.target  # type: ignore[attr-defined]


def assigned(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Return a variable and what it gets, if the node assigns one."""
    if isinstance(node, ast.Assign) and variable(node.targets[0]):
        return variable(node.targets[0]), node.value
    return None


def assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield each variable and what it gets."""
    if isinstance(node, ast.AugAssign) and variable(node.target):
        yield variable(node.target), ast.BinOp(node.target, node.op, node.value)
    if isinstance(node, ast.NamedExpr):
        yield variable(node.target), node.value
    yield from unpacked(node)


def unpacked(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield each variable of an assignment and its value. In ``a, b = model(x)``, the call is the
    value of both; in ``a, b = x, y``, each has its own.
    """
    for target in node.targets if isinstance(node, ast.Assign) else ():
        value: ast.expr = node.value  # type: ignore[attr-defined]
        targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        each = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        values = each if len(each) == len(targets) > 1 else [value] * len(targets)
        for one, given in zip(targets, values, strict=True):
            if variable(one):
                yield variable(one), given


def written(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Return a variable and the value assigned to a part of it: ``queue[:, a:b] = keys.T``."""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    if isinstance(target, ast.Subscript) and variable(target.value):
        return variable(target.value), node.value  # type: ignore[attr-defined]
    return None


def grows(node: ast.AST) -> Iterator[tuple[str, ast.expr, bool]]:
    """Yield the name that a node adds to, what it adds, and whether it joins whole tensors."""
    if (sum_ := added_to(node)) is not None:
        yield *sum_, False
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        name = ast.unparse(node.targets[0])
        for call in ast.walk(node.value):
            if isinstance(call, ast.Call) and called(call) in JOINING:
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
        added, is_set = node.args[0], node.func.attr == "update"
        if not (is_set and is_size(added)):  # a progress bar
            yield (
                ast.unparse(node.func.value),
                ast.List([added], ast.Load()),
                isinstance(added, ast.Name) and not is_set,
            )


def added_to(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Return ``total`` and the rest of ``total += a + b`` or ``total = a + total + b``."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return ast.unparse(node.target), node.value
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return None
    name, terms = ast.unparse(node.targets[0]), list(_terms(node.value))
    others = [one for one in terms if ast.unparse(one) != name]
    if not others or len(others) != len(terms) - 1:
        return None
    return name, functools.reduce(lambda a, b: ast.BinOp(a, ast.Add(), b), others)


def _terms(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        yield from (*_terms(value.left), *_terms(value.right))
    else:
        yield value


def filled_in(node: ast.AST) -> set[str]:
    """Return variables that a node adds to, or writes a part of: ``x.append(y)``, ``x[i] = y``."""
    row = written(node)
    return {name for name, *_ in grows(node)} | ({row[0]} if row else set())


def emptied(node: ast.AST) -> set[str]:
    """Return the variables that a node empties: ``x.clear()``, ``del x[:]``."""
    if called(node) == "clear":
        return {ast.unparse(node.func.value)}  # type: ignore[attr-defined]
    parts = node.targets if isinstance(node, ast.Delete) else []
    return {variable(one.value) for one in parts if isinstance(one, ast.Subscript)}


def retains(backward: ast.AST) -> bool:
    """Whether a backward retains its graph, so that the loss stays as it is on each rank."""
    return any(
        one.arg in KEEPING and isinstance(one.value, ast.Constant) and one.value.value is True
        for one in getattr(backward, "keywords", ())
    )


def losses(node: ast.AST) -> list[ast.expr]:
    """Return the losses in ``(a + b).backward()``, ``scaler.scale(loss).backward()`` and such."""
    if not isinstance(node, ast.Call) or called(node) != "backward":
        return []
    receiver = node.func.value if isinstance(node.func, ast.Attribute) else node.func
    is_scaled = isinstance(receiver, ast.Call) and called(receiver) == "scale"
    return [*node.args, receiver, *(receiver.args if is_scaled else ())]  # type: ignore[attr-defined]


def parts(value: ast.expr) -> set[str]:
    """Return the variables that arithmetic alone combines: ``a + 0.1 * b``, ``sum([a, b])``."""
    if variable(value):
        return {variable(value)}
    inner: list[ast.expr] = []
    if isinstance(value, ast.BinOp):
        inner = [value.left, value.right]
    elif isinstance(value, ast.UnaryOp):
        inner = [value.operand]
    elif isinstance(value, ast.List | ast.Tuple):
        inner = value.elts
    elif isinstance(value, ast.Call) and called(value) in PLAIN | OVER_ALL:
        receiver = value.func.value if isinstance(value.func, ast.Attribute) else None
        is_number = called(value) in PLAIN or not isinstance(receiver, ast.Name)
        inner = value.args + ([receiver] if receiver is not None and is_number else [])
    return set().union(*map(parts, inner))


def data_in(value: ast.AST) -> set[str]:
    """Return the variables in a value that no model computes, only arithmetic and tensor methods:
    ``x.to(device)``, ``torch.log(x)``, ``batch["x"][:, 0]``.
    """
    if variable(value):
        return {variable(value)}
    inner = list(ast.iter_child_nodes(value))
    if isinstance(value, ast.Call):
        function = value.func
        if not isinstance(function, ast.Attribute) or variable(function):
            return set()
        is_library = isinstance(function.value, ast.Name) and function.value.id in LIBRARIES
        inner = list(value.args) if is_library else [function.value]
    elif isinstance(value, ast.Subscript):
        inner = [value.value, value.slice]
    return set().union(*map(data_in, inner))


def is_reduced(value: ast.AST) -> bool:
    """Whether a value is a statistic: ``x.mean()``, ``torch.sum(x * w)``, ``x.std() / 2``."""
    if isinstance(value, ast.BinOp):
        return is_reduced(value.left) and is_reduced(value.right)
    return isinstance(value, ast.Constant) or called(value) in STATISTICS | OVER_ALL


def is_over_samples(value: ast.AST) -> bool:
    """Whether a value is a statistic over samples: ``x.mean()``, ``torch.std(x, dim=0)``."""
    return isinstance(value, ast.Call) and called(value) in STATISTICS and _is_of_samples(value)


def orders_samples(value: ast.AST, is_seen: bool) -> bool:
    """Whether a value orders samples: ``np.argsort(x)``, or ``x.topk(3)`` unless ``is_seen``,
    which means that the graph shows the values.
    """
    functions = ARGSORTS if is_seen else ARGSORTS | SORTS
    return isinstance(value, ast.Call) and called(value) in functions and _is_of_samples(value)


def _is_of_samples(value: ast.Call) -> bool:
    if isinstance(value.func, ast.Name):
        return True
    owner = value.func.value if isinstance(value.func, ast.Attribute) else None
    is_library = isinstance(owner, ast.Name) and owner.id in LIBRARIES
    given = value.args[is_library + (called(value) in NUMBER_FIRST) :]
    given = [*given, *(one.value for one in value.keywords if one.arg in ("dim", "axis"))]
    dims = [one for each in given for one in getattr(each, "elts", [each])]
    return not dims or any(isinstance(one, ast.Constant) and one.value == 0 for one in dims)


def second_of_two(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Return the second variable of two, and its value: ``_, best = losses.topk(3)``."""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    if not isinstance(target, ast.Tuple) or len(target.elts) != 2 or not variable(target.elts[1]):
        return None
    return variable(target.elts[1]), ast.Subscript(node.value, ast.Constant(1))  # type: ignore[attr-defined]


def indices_of(node: ast.AST) -> ast.expr | None:
    """Return the call in ``x.topk(3).indices`` and ``x.sort()[1]``."""
    if isinstance(node, ast.Attribute) and node.attr == "indices":
        return node.value
    is_second = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    return node.value if is_second and node.slice.value == 1 else None  # type: ignore[attr-defined]


def is_detached(value: ast.AST) -> bool:
    return any(
        called(node) in DETACHING or (isinstance(node, ast.Attribute) and node.attr == "data")
        for node in ast.walk(value)
    )


def is_unreduced(value: ast.AST) -> bool:
    """Whether a call has ``reduction="none"``, as ``CrossEntropyLoss(reduction="none")``."""
    return isinstance(value, ast.Call) and any(
        one.arg == "reduction" and isinstance(one.value, ast.Constant) and one.value.value == "none"
        for one in value.keywords
    )


def number_of(node: ast.AST) -> ast.expr | None:
    """Return ``value`` in ``value.item()``, ``float(value)`` or ``int(value)``, or None."""
    if not isinstance(node, ast.Call):
        return None
    if called(node) == "item" and isinstance(node.func, ast.Attribute):
        return node.func.value
    return node.args[0] if called(node) in ("float", "int") and len(node.args) == 1 else None


def shown(node: ast.AST) -> list[ast.expr]:
    """Return the values that a call shows unreduced. ``s.log("acc", acc, on_epoch=True)`` reduces
    its value.
    """
    if not isinstance(node, ast.Call) or called(node) not in PRINTING:
        return []
    if owner_and_method(node)[0] in {"math", *LIBRARIES}:  # torch.log
        return []
    given = [*node.args, *(one.value for one in node.keywords)]
    if any(one.arg in REDUCING for one in node.keywords):
        return []
    return given + [one for value in given for part in ast.walk(value) for one in filled(part)]


def filled(part: ast.AST) -> list[ast.expr]:
    """Return the values in ``{"acc": acc}``, ``f"{acc}"``, ``"{}".format(acc)``, ``"%f" % acc``."""
    if isinstance(part, ast.Dict):
        return part.values
    if isinstance(part, ast.FormattedValue):
        return [part.value]
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
        return part.right.elts if isinstance(part.right, ast.Tuple) else [part.right]
    is_format = isinstance(part, ast.Call) and called(part) == "format"
    return part.args if is_format else []  # type: ignore[attr-defined]


def closed(begin: set[str], edges: Iterable[tuple[str, str]]) -> set[str]:
    """Return the names in ``begin``, and those that edges reach from them."""
    found, edges = set(begin), list(edges)
    while further := {to for name, to in edges if name in found} - found:
        found |= further
    return found


def made_of(begin: set[str], values: Iterable[tuple[str, ast.expr]], without: set[str]) -> set[str]:
    """Return the variables computed from the names in ``begin``, but not through ``without``."""
    edges = [(one, name) for name, value in values for one in names(value) - without]
    return closed(begin, edges)


def reached(
    read: Callable[[ast.expr], set[str]],
    roots: Iterable[ast.expr],
    values: Iterable[tuple[str, ast.expr]],
) -> set[str]:
    """Return the variables from which the roots are computed, and other names of these. ``read``
    returns the variables in an expression.
    """
    edges = [(name, one) for name, value in values for one in read(value)]
    edges += [(variable(value), name) for name, value in values if variable(value)]
    return closed(set().union(*map(read, roots)), edges)


def read_as_number(node: ast.AST) -> set[str]:
    """Return the variables read by ``loss.item()``, ``float(loss)``, ``total += loss.detach()``,
    ``total = total + loss.data * n``.
    """
    value = number_of(node)
    if value is not None:
        return names(value)
    if called(node) in ("clone", "numpy", "tolist"):
        return names(node)
    if called(node) == "detach" and called(node.func.value) in ("cat", "stack"):  # type: ignore[attr-defined]
        return names(node)
    if called(node) == "log":
        return set().union(*map(_summed_from, shown(node)))
    added = added_to(node)
    return set() if added is None else set().union(*map(_summed_from, _terms(added[1])))


def _summed_from(value: ast.expr) -> set[str]:
    """Return ``loss`` of ``loss.detach().float()``, ``torch.sqrt(loss.data)`` and ``loss * n``."""
    if variable(value):
        return {variable(value)}
    inner: list[ast.expr] = []
    if isinstance(value, ast.Attribute) and value.attr == "data":
        inner = [value.value]
    elif isinstance(value, ast.BinOp):
        inner = [value.left, value.right]
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        owner = value.func.value
        is_library = isinstance(owner, ast.Name) and owner.id in LIBRARIES
        inner = value.args[:1] if is_library else [owner]
    return set().union(*map(_summed_from, inner))


def computed_from(value: ast.expr) -> set[str]:
    """Return the variables from which a value computes another number: ``psnr(loss)``,
    ``loss / 2``. ``loss.detach()`` and ``[loss]`` hold the same tensor.
    """
    alias = {*PLAIN, "to"} - {"stack", "clone", "double", "values"}
    while isinstance(value, ast.Call | ast.Attribute | ast.Subscript):
        inner = value.func if isinstance(value, ast.Call) else value
        if not isinstance(inner, ast.Attribute) or inner.attr not in alias | {"data"}:
            break
        value = inner.value
    is_same = variable(value) or isinstance(value, ast.Dict | ast.List | ast.Tuple | ast.Subscript)
    return set() if is_same else names(value)


def division(node: ast.AST) -> tuple[ast.expr, ast.expr]:
    """Return what a node divides, and by what: ``a / b``, ``a /= b``. Two constants if nothing."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return node.left, node.right
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        return node.target, node.value
    return ast.Constant(None), ast.Constant(None)


def gradient_divisor(node: ast.AST) -> ast.expr:
    """Return ``n`` in ``p.grad /= n``, ``lr * p.grad / n``, ``p.grad.div_(n)`` and
    ``p.grad.mul_(1 / n)``. A constant if nothing divides a gradient.
    """
    divided, by = division(node)
    if _is_gradient(divided):
        return by
    if isinstance(node, ast.AugAssign) and _is_gradient(node.target):
        return division(node.value)[1]
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
    if not is_method or not _is_gradient(node.func.value):  # type: ignore[attr-defined]
        return ast.Constant(None)
    given: ast.expr = node.args[0]  # type: ignore[attr-defined]
    return given if called(node) in ("div", "div_") else division(given)[1]


def _is_gradient(value: ast.AST) -> bool:
    """Whether a value is ``p.grad``, ``p.grad.data`` or ``lr * p.grad``."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        return _is_gradient(value.left) or _is_gradient(value.right)
    if isinstance(value, ast.Attribute) and value.attr == "data":
        return _is_gradient(value.value)
    return isinstance(value, ast.Attribute) and value.attr == "grad"


def gradients_given(node: ast.AST) -> list[ast.expr]:
    """Return what starts a backward: ``w`` in ``losses.backward(w)`` and ``gradient=w``."""
    if not isinstance(node, ast.Call) or called(node) != "backward":
        return []
    return [*node.args, *(one.value for one in node.keywords if one.arg == "gradient")]


def reads_any(names: set[str]) -> Callable[[ast.expr], bool]:
    """Return a function: whether an expression reads one of the variables as a number."""
    return lambda value: any(read_as_number(node) & names for node in ast.walk(value))


def is_measure(value: ast.expr, of_batch: set[str]) -> bool:
    """Whether a value is a measure: ``accuracy(out, y)``, ``(out == y).float().mean()``."""
    if not isinstance(value, ast.Call):
        return False
    is_function = isinstance(value.func, ast.Name)
    return called(value) in MEASURING or (is_function and len(names(value) & of_batch) > 1)


def fills(value: ast.expr) -> bool:
    """Whether a value joins or adds: ``cat([name, ...])[-8:]``, ``0.9 * name + 0.1 * x``."""
    while isinstance(value, ast.Subscript):
        value = value.value
    joins = isinstance(value, ast.Call) and called(value) in JOINING
    return joins or (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub))


def is_of_items(items: ast.expr, batch: set[str]) -> bool:
    calls = {called(node) for node in ast.walk(items)}
    return bool(calls & {"zip", *PREDICTING}) and bool(
        names(items) & batch or calls & {"argmax", "topk"}
    )


def is_trivial(value: ast.expr) -> bool:
    """Whether a value is 0, 1 or None, as in ``if total > 0``."""
    return isinstance(value, ast.Constant) and value.value in (0, 1, None)


def is_count(value: ast.expr) -> bool:
    """Whether a value counts what is equal: ``(prediction == target).sum()``."""
    return compares(value) and any(called(node) == "sum" for node in ast.walk(value))


def is_mask(value: ast.expr) -> bool:
    """Whether a value is a mask: ``confidence.ge(0.9).float()``, ``(y > 0).to(x)``."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if called(value) in COMPARING:
            return True
        value = value.func.value
    return isinstance(value, ast.Compare)


def compares(value: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Compare) or called(node) in COMPARING for node in ast.walk(value)
    )


def collects(value: ast.expr, batch: set[str]) -> bool:
    """Whether a value collects predictions or targets, as in ``targets += y.tolist()``."""
    nodes = list(ast.walk(value))
    if any(called(node) in ("item", "float", "len", "sum", "mean") for node in nodes):
        return False
    predicts = any(called(node) in PREDICTING for node in nodes)
    of_batch = any(isinstance(node, ast.Name) and node.id in batch for node in nodes)
    return predicts and (of_batch or any(called(node) in ("argmax", "topk") for node in nodes))
