"""What a training loop's source says: what is assigned from what, and what is read or shown."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import UnionType
from typing import Any

COLLECTING = {"append", "extend", "update"}
JOINING = {"cat", "concat", "concatenate", "append", "hstack", "vstack"}
KEEPING = {"retain_graph", "create_graph"}
SIZES = {"size", "shape"}
PLAIN = {"stack", "detach", "clone", "cpu", "values", "float", "double"}
OVER_ALL = {"sum", "mean"}
GATHERING = {
    *("reduce", "all_reduce", "all_gather", "all_gather_object", "gather", "gather_object"),
    *("gather_in_order", "gather_for_metrics", "all_gather_into_tensor", "broadcast"),
}
REDUCING_ALONE = {"einops", "functools", "np", "numpy"}
PRINTING = {"print", "log", "add_scalar", "set_description", "set_postfix", "write", "info"}


def variable(node: ast.AST) -> str:
    """Return the name of ``x`` or ``self.x``; "" of all else."""
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
    """Return the last name of what a node calls, or ""."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def is_size(value: ast.expr) -> bool:
    return any(
        called(node) in ("len", "numel") or (isinstance(node, ast.Attribute) and node.attr in SIZES)
        for node in ast.walk(value)
    )


def base_name(value: ast.expr) -> str:
    """Return the variable in ``loss``, ``losses["box"]``, ``out.loss.detach()``; "" of all else."""
    while not variable(value):
        if isinstance(value, ast.Subscript | ast.Attribute):
            value = value.value
        elif isinstance(value, ast.Call) and called(value) in PLAIN and not value.args:
            value = value.func
        else:
            return ""
    return variable(value)


def gathers(node: ast.AST) -> bool:
    """Whether it combines over ranks. ``reduce`` alone does not: einops and functools have one."""
    name = called(node)
    function = node.func if isinstance(node, ast.Call) else None
    owner = function.value if isinstance(function, ast.Attribute) else None
    is_other = owner is None or (isinstance(owner, ast.Name) and owner.id in REDUCING_ALONE)
    return name in GATHERING and not (name == "reduce" and is_other)


def batch_in(loop: ast.For) -> ast.expr:
    """Return what of the loop's target is the batch: not the number of ``enumerate``."""
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
    """Yield each variable of an assignment and its value: ``a, b = model(x)`` gives the call to
    both, and ``a, b = x, y`` gives each its own.
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
    """Return a variable and what a part of it gets: ``queue[:, place : place + size] = keys.T``."""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    if isinstance(target, ast.Subscript) and variable(target.value):
        return variable(target.value), node.value  # type: ignore[attr-defined]
    return None


def grows(node: ast.AST) -> Iterator[tuple[str, ast.expr, bool]]:
    """Yield the name that a node adds to, what it adds, and whether it joins whole tensors."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield ast.unparse(node.target), node.value, False
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
        added = node.args[0]
        yield (
            ast.unparse(node.func.value),
            ast.List([added], ast.Load()),
            isinstance(added, ast.Name),
        )


def retains(backward: ast.AST) -> bool:
    """``retain_graph=True`` or ``create_graph=True``: the loss stays as it is on each rank."""
    return any(
        one.arg in KEEPING and isinstance(one.value, ast.Constant) and one.value.value is True
        for one in getattr(backward, "keywords", ())
    )


def losses(node: ast.AST) -> list[ast.expr]:
    """``(a + b).backward()``, ``scaler.scale(loss).backward()``, ``fabric.backward(loss)``."""
    if not isinstance(node, ast.Call) or called(node) != "backward":
        return []
    receiver = node.func.value if isinstance(node.func, ast.Attribute) else node.func
    is_scaled = isinstance(receiver, ast.Call) and called(receiver) == "scale"
    return [*node.args, receiver, *(receiver.args if is_scaled else ())]  # type: ignore[attr-defined]


def parts(value: ast.expr) -> set[str]:
    """The variables that arithmetic alone makes a value of: ``a + 0.1 * b``, ``sum([a, b])``."""
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


def number_of(node: ast.AST) -> ast.expr | None:
    """Return what a call reads as a number: ``value.item()``, ``float(value)``, ``int(value)``."""
    if not isinstance(node, ast.Call):
        return None
    if called(node) == "item" and isinstance(node.func, ast.Attribute):
        return node.func.value
    return node.args[0] if called(node) in ("float", "int") and len(node.args) == 1 else None


def shown(node: ast.AST) -> set[str]:
    """The variables that a call shows as they are; ``s.log("acc", acc)`` reduces them."""
    if not isinstance(node, ast.Call) or called(node) not in PRINTING:
        return set()
    given = [*node.args, *(one.value for one in node.keywords)]
    if not given or (called(node) == "log" and isinstance(given[0], ast.Constant)):
        return set()
    values = given + [one for value in given for part in ast.walk(value) for one in filled(part)]
    return {base_name(one) for one in values if not is_size(one)}


def filled(part: ast.AST) -> list[ast.expr]:
    """``{"acc": acc}``, ``f"{acc}"``, ``"{}".format(acc)``, ``"%f" % acc``."""
    if isinstance(part, ast.Dict):
        return part.values
    if isinstance(part, ast.FormattedValue):
        return [part.value]
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
        return part.right.elts if isinstance(part.right, ast.Tuple) else [part.right]
    is_format = isinstance(part, ast.Call) and called(part) == "format"
    return part.args if is_format else []  # type: ignore[attr-defined]


def closed(begin: set[str], edges: Iterable[tuple[str, str]]) -> set[str]:
    """Return the names to begin with, and those that edges reach from them."""
    found, edges = set(begin), list(edges)
    while further := {to for name, to in edges if name in found} - found:
        found |= further
    return found


def made_of(begin: set[str], values: Iterable[tuple[str, ast.expr]], without: set[str]) -> set[str]:
    """Return the variables that come from these names, but not through those ``without``."""
    edges = [(one, name) for name, value in values for one in names(value) - without]
    return closed(begin, edges)


def reached(
    read: Callable[[ast.expr], set[str]],
    roots: Iterable[ast.expr],
    values: Iterable[tuple[str, ast.expr]],
) -> set[str]:
    """Return the variables that the roots are made of, by what ``read`` finds in an expression,
    and other names of these variables.
    """
    edges = [(name, one) for name, value in values for one in read(value)]
    edges += [(variable(value), name) for name, value in values if variable(value)]
    return closed(set().union(*map(read, roots)), edges)


Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.While
Place = tuple[str, int]


def plain(text: str) -> str:
    """Return a name or an expression of a program as the user wrote it."""
    return re.sub(r"@\w+", "", text)


class Program:
    """The files around a loop, read as if all of it were in one function.

    A variable of a function is named ``name@function``. ``values``: what each variable is given,
    by a call and its result too. Calls that combine over ranks are constants, because each rank has
    the same. ``gathered``: what they combine, and what that is made of.

    ``running``: where the frames of the loop are, the innermost first. Their functions are the
    only ones that ``x.step()`` finds; ``self.step()`` finds each method of the files.
    """

    def __init__(self, running: Iterable[Place]) -> None:
        modules = {file: _parsed(file) for file, _ in running}
        self._nodes = {file: [*ast.walk(one)] for file, one in modules.items() if one is not None}
        before = [node for nodes in self._nodes.values() for node in nodes]
        around = [each[-1] for place in running if (each := self._around(place, Function))]
        self._functions = _by_call(before, around)
        flat = _Flat(_combining(before) - {one.name for one in around})
        for nodes in self._nodes.values():
            flat.visit(nodes[0])
        self.nodes = [node for nodes in self._nodes.values() for node in ast.walk(nodes[0])]
        self.values = [pair for node in self.nodes for pair in self.given(node)]
        self._by_name: dict[str, list[ast.expr]] = {}
        for name, value in self.values:
            self._by_name.setdefault(name, []).append(value)
        combined = [one for value in flat.combined for one in self.meant(value)]
        self.gathered = reached(names, combined, self.values)

    def imports(self, package: str) -> bool:
        return any(package in line for file in self._nodes for line in linecache.getlines(file))

    def loop(self, running: Sequence[Place]) -> tuple[str, Loop] | None:
        """Return the loop whose pass begins in the outermost place. If that is a generator or an
        ``iter(...)``, return the innermost loop around the others that takes batches from it.
        """
        file, line = running[-1]
        passes = [
            (file, node)
            for node in self._nodes.get(file, [])
            if isinstance(node, ast.For) and not any(map(_yields, node.body))
            and node.lineno <= line <= (node.iter.end_lineno or 0)
        ]  # fmt: skip
        around = [
            (place[0], one)
            for place in running[:-1]
            for one in reversed(self._around(place, Loop))
            if self._takes(one)
        ]
        return next(iter([*reversed(passes), *around]), None)

    def _takes(self, loop: Loop) -> bool:
        made = self.meanings(loop.iter) if isinstance(loop, ast.For) else []
        calls = [self.function(node) for one in made for node in ast.walk(one)]
        is_generator = any(one is not None and _yields(one) for one in calls)
        return is_generator or any(map(_is_next, self.evaluated([loop])))

    def _around(self, place: Place, kind: UnionType) -> list[Any]:
        """Return the functions or loops around a place, the outermost first."""
        return [
            node
            for node in self._nodes.get(place[0], [])
            if isinstance(node, kind) and node.lineno <= place[1] <= (node.end_lineno or 0)
        ]

    def function(self, node: ast.AST) -> Function | None:
        """Return the function of the files that a node calls."""
        if not isinstance(node, ast.Call):
            return None
        if isinstance(node.func, ast.Name):
            return self._functions.get(plain(node.func.id))
        owned = variable(node.func) or f".{called(node)}"
        return self._functions.get(owned if owned.startswith("self.") else f".{called(node)}")

    def evaluated(
        self, nodes: Iterable[ast.AST], without: Callable[[ast.AST], bool] = lambda _: False
    ) -> Iterator[ast.AST]:
        """Yield nodes in the order of their evaluation, and functions at their first call."""
        seen: set[ast.AST] = set()
        stack = [(node, False) for node in reversed([*nodes])]
        while stack:
            node, is_over = stack.pop()
            if is_over:
                yield node
                function = self.function(node)
                if function is not None and function not in seen:
                    stack.append((function, False))
            elif not without(node):
                seen.add(node)
                inside = reversed([*ast.iter_child_nodes(node)])
                stack += [(node, True), *((one, False) for one in inside)]

    def given(self, node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
        """Yield each variable that a node gives something, and what."""
        yield from assignments(node)
        if isinstance(node, ast.For | ast.comprehension):
            yield from ((name, node.iter) for name in names(node.target))
        if (function := self.function(node)) is not None:
            yield from _parameters(function, node)  # type: ignore[arg-type]
        if isinstance(node, ast.Assign):
            for value in self._returned(node.value):
                yield from unpacked(ast.Assign(node.targets, value))

    def _returned(self, value: ast.expr) -> list[ast.expr]:
        """Return what the function that is called returns."""
        called_one = self.function(value)
        inside = () if called_one is None else ast.walk(called_one)
        return [one.value for one in inside if isinstance(one, ast.Return) and one.value]

    def meanings(self, value: ast.AST) -> list[Any]:
        """Return an expression, and what it is if it names a variable or a call gives it."""
        found: list[Any] = [value]
        for one in found:
            number = number_of(one)
            more = [*self._by_name.get(variable(one), ()), *self._returned(one)]
            found += [new for new in (*more, *([number] if number else [])) if new not in found]
        return found

    def meant(self, value: ast.AST) -> list[Any]:
        """Return the meanings of all parts of an expression."""
        return [one for inner in ast.walk(value) for one in self.meanings(inner)]


def _parsed(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def _is_next(node: ast.AST) -> bool:
    return called(node) == "next"


def takes(node: ast.AST) -> bool:
    return any(map(_is_next, ast.walk(node)))


def _yields(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node))


def _by_call(nodes: list[ast.AST], running: list[Function]) -> dict[str, Function]:
    """Return functions as calls name them: ``name``, ``self.name``, and ``.name`` if it runs."""
    bodies = [node.body for node in nodes if isinstance(node, ast.ClassDef)]
    methods = [one for body in bodies for one in body if isinstance(one, Function)]
    found = {one.name: one for one in nodes if isinstance(one, Function) and one not in methods}
    found |= {f"self.{one.name}": one for one in methods}
    for one in running:
        found |= {f".{one.name}": one} | ({f"self.{one.name}": one} if one in methods else {})
    return found


def _combining(nodes: list[ast.AST]) -> set[str]:
    """Return the names of functions that combine over ranks, or call one that does."""
    calls = [
        (one.name, inner)
        for one in nodes
        if isinstance(one, Function)
        for inner in ast.walk(one)
        if isinstance(inner, ast.Call)
    ]
    begin = {name for name, call in calls if gathers(call)}
    return closed(begin, [(called(call), name) for name, call in calls])


class _Flat(ast.NodeTransformer):
    """Names each variable of a function ``name@function``, and of a comprehension ``name@line``.

    Replaces calls that combine over ranks. ``combined``: what they are given.
    """

    def __init__(self, combining: set[str]) -> None:
        self._names: dict[str, str] = {}
        self._combining = combining
        self.combined: list[ast.expr] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not gathers(node) and called(node) not in self._combining:
            return node
        self.combined += [node.func, *node.args, *(one.value for one in node.keywords)]
        return ast.copy_location(ast.Constant(0), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._visit(node, {name: f"{name}@{node.name}" for name in _local_names(node)})

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ListComp(self, node: Any) -> ast.AST:
        inside = set().union(*(names(one.target) for one in node.generators))
        return self._visit(node, {name: f"{name}@{node.lineno}" for name in inside})

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def _visit(self, node: ast.AST, inside: dict[str, str]) -> ast.AST:
        outer, self._names = self._names, self._names | inside
        self.generic_visit(node)
        self._names = outer
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._names.get(node.arg, node.arg)
        return node


def _local_names(function: Function) -> set[str]:
    """Return the variables of a function itself."""
    nodes = list(ast.walk(function))
    foreign = {
        name for one in nodes if isinstance(one, ast.Global | ast.Nonlocal) for name in one.names
    }
    stored = {
        one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }
    given = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
    return (stored - foreign | given) - {"self"}


def _parameters(function: Function, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    given = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    parameters = [name for name in given if name != "self"]
    yield from zip(parameters, call.args, strict=False)
    by_name = {one.arg: one.value for one in call.keywords}
    every = (*parameters, *(one.arg for one in function.args.kwonlyargs))
    yield from ((name, by_name[plain(name)]) for name in every if plain(name) in by_name)
