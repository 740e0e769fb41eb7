"""Reads the source around a training loop: variables, calls, batches and losses."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import UnionType
from typing import Any

from torchbus_sampler import loop_source as source
from torchbus_strategy.user_code import Place, parsed

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.While


def plain(text: str) -> str:
    """Return a name or an expression of a program as the user wrote it."""
    return re.sub(r"@\w+", "", text)


class Program:
    """The files around a loop, read as if all of their code were in one function.

    A variable of a function is named ``name@function``. ``values`` has each variable with each
    value that it gets, also as a parameter or a result of a call. Calls that combine over ranks
    become constants, because all ranks get the same result. ``gathered`` has the variables that
    these calls combine, and those that they are made from. ``reduced`` has those that get a result.

    ``running`` are the places of the loop's frames, the innermost first. ``x.step()`` is looked up
    only among their functions; ``self.step()`` among all methods of the files.
    """

    def __init__(self, running: Iterable[Place]) -> None:
        files = dict.fromkeys(file for file, _ in running)
        self._nodes = {file: [*ast.walk(parsed(file))] for file in files}
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
        self.reduced = {
            name
            for name, value in self.values
            if any(inner in flat.results for inner in ast.walk(value))
        }
        self.gathered = source.reached(source.names, combined, self.values)

    def imports(self, package: str) -> bool:
        return any(package in line for file in self._nodes for line in linecache.getlines(file))

    def loop(self, running: Sequence[Place]) -> tuple[str, Loop] | None:
        """Return the loop whose pass begins in the outermost place. If that is in a generator or an
        ``iter(...)``, return the innermost loop around the other places that gets batches from it.
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

    def after(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the statements that run after a statement in its function."""
        for node in self.nodes:
            for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
                if isinstance(block, list) and statement in block:
                    following = block[block.index(statement) + 1 :]
                    is_outermost = isinstance(node, Function | ast.Module)
                    return following + ([] if is_outermost else self.after(node))  # type: ignore[arg-type]
        return []

    def _takes(self, loop: Loop) -> bool:
        made = self.meanings(loop.iter) if isinstance(loop, ast.For) else []
        calls = [self.function(node) for one in made for node in ast.walk(one)]
        is_generator = any(one is not None and _yields(one) for one in calls)
        return is_generator or any(map(source.is_next, self.evaluated([loop])))

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
        owned = source.variable(node.func) or f".{source.called(node)}"
        return self._functions.get(
            owned if owned.startswith("self.") else f".{source.called(node)}"
        )

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
        """Yield each variable that a node assigns, also as a parameter, with its value."""
        yield from source.assignments(node)
        if isinstance(node, ast.For | ast.comprehension):
            yield from ((name, node.iter) for name in source.names(node.target))
        if (function := self.function(node)) is not None:
            yield from _parameters(function, node)  # type: ignore[arg-type]
        if isinstance(node, ast.Assign):
            for value in self.returned(node.value):
                yield from source.unpacked(ast.Assign(node.targets, value))

    def returned(self, value: ast.AST) -> list[ast.expr]:
        """Return the expressions that the called function returns, if ``value`` is a call."""
        called_one = self.function(value)
        inside = () if called_one is None else ast.walk(called_one)
        return [one.value for one in inside if isinstance(one, ast.Return) and one.value]

    def meanings(self, value: ast.AST) -> list[Any]:
        """Return an expression, and the values of the variable or call that it stands for."""
        found: list[Any] = [value]
        for one in found:
            number = source.number_of(one)
            more = [*self._by_name.get(source.variable(one), ()), *self.returned(one)]
            found += [new for new in (*more, *([number] if number else [])) if new not in found]
        return found

    def meant(self, value: ast.AST) -> list[Any]:
        """Return the meanings of all parts of an expression."""
        return [one for inner in ast.walk(value) for one in self.meanings(inner)]


def facts_of(*places: Place) -> LoopFacts | None:
    """Return the facts of a loop, or None if there is none.

    ``places`` are those of the frames of the loop's backward, the innermost first. The last one is
    where the pass begins.
    """
    program = Program(places)
    found = program.loop(places)
    return None if found is None else LoopFacts(*found, program)


class LoopFacts:
    """Facts about the batches and losses of a training loop, read from its source.

    - ``place``: file and line of the loop
    - ``nodes``: the nodes that the loop evaluates, in order; ``values``: each variable that they
      assign, with its value; ``made``: the variables that they set
    - ``batch``: the variables that hold a batch; ``of_batch``: those computed from a batch
    - ``roots``: the losses; ``in_loss``: variables that enter them; ``added_up``: variables that
      enter them by arithmetic alone; ``apart``: those computed from a batch, but not through these
    """

    def __init__(self, file: str, loop: Loop, program: Program) -> None:
        self.place = file, loop.lineno
        self.loop = loop
        self.program = program
        takes = not isinstance(loop, ast.For) or source.called(loop.iter) == "range"
        self.batch = set() if takes else source.names(source.batch_in(loop))  # type: ignore[arg-type]
        begin = [loop.test] if isinstance(loop, ast.While) else []
        self.nodes = list(program.evaluated([*begin, *loop.body], self._is_other_pass))
        self.values = [pair for node in self.nodes for pair in program.given(node)]
        if takes:
            self.batch = {
                name for name, value in self.values if any(map(source.is_next, ast.walk(value)))
            }
        self.made = {
            node.id
            for node in self.nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        self.roots = [
            one for node in self.nodes for one in source.losses(node) if not source.retains(node)
        ]
        masks = {name for name, value in self.values if source.is_mask(value)}
        self.added_up = source.reached(source.parts, self.roots, self.values) - masks
        self.in_loss = source.reached(source.names, self.roots, self.values)
        reduced = program.reduced - self.in_loss
        without = reduced | self.added_up
        self.of_batch = source.made_of(self.batch, self.values, reduced) - reduced
        self.apart = source.made_of(self.batch, self.values, without) - without

    @property
    def also_evaluates(self) -> bool:
        """Whether some passes evaluate: ``with torch.set_grad_enabled(phase == "train"):``."""
        return any(
            source.called(node) == "set_grad_enabled"
            and not all(isinstance(one, ast.Constant) for one in node.args)  # type: ignore[attr-defined]
            for node in self.nodes
        )

    def _is_other_pass(self, node: ast.AST) -> bool:
        """Whether a node is ``for x, y in held_out`` inside of ``for x, y in loader``."""
        return (
            isinstance(node, ast.For)
            and bool(source.names(node.target) & self.batch)
            and not source.names(node.iter) & self.batch
        )


def _yields(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node))


def _by_call(nodes: list[ast.AST], running: list[Function]) -> dict[str, Function]:
    """Return functions by the names of calls: ``name``, ``self.name``, and ``.name`` if running."""
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
    begin = {name for name, call in calls if source.gathers(call)}
    return source.closed(begin, [(source.called(call), name) for name, call in calls])


class _Flat(ast.NodeTransformer):
    """Names each variable of a function ``name@function``, and of a comprehension ``name@line``.

    Replaces calls that combine over ranks by constants, ``results``. ``combined`` has their
    arguments.
    """

    def __init__(self, combining: set[str]) -> None:
        self._names: dict[str, str] = {}
        self._combining = combining
        self.combined: list[ast.expr] = []
        self.results: set[ast.AST] = set()

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not source.gathers(node) and source.called(node) not in self._combining:
            return node
        self.combined += [node.func, *node.args, *(one.value for one in node.keywords)]
        result = ast.copy_location(ast.Constant(0), node)
        self.results.add(result)
        return result

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._visit(node, {name: f"{name}@{node.name}" for name in _local_names(node)})

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ListComp(self, node: Any) -> ast.AST:
        inside = set().union(*(source.names(one.target) for one in node.generators))
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
    """Return the local variables and parameters of a function."""
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
