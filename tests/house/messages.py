"""The messages that the sources can raise or warn of, as texts with an ellipsis for each part that
is filled in.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

GAP = "…"
WARNING = {"warn", "_warn", "_say", "warn_explicit"}
INTERNAL = {"too large"}  # caught where it is raised
Names = dict[str, list[ast.expr]]


def messages(paths: list[Path]) -> set[tuple[str, str]]:
    """Pairs of a file and a message that it gives to one of torchbus's exceptions or to a warning.

    Texts that are wholly variable are left out.
    """
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    speaking = WARNING | errors(trees.values())
    modules = {module(path): assigned(tree.body) for path, tree in trees.items()}
    found = {
        (str(path), " ".join(text.split()))
        for path, tree in trees.items()
        for text in spoken(tree, speaking, imported(tree, modules))
    }
    return {
        (path, text)
        for path, text in found
        if text not in INTERNAL and len(re.findall(r"[a-z]{2,}", text)) > 1
    }


@cache
def below(node: ast.AST) -> list[ast.AST]:
    """A node and all nodes below it."""
    return [*ast.walk(node)]


def errors(trees: Iterable[ast.Module]) -> set[str]:
    """The names of TorchbusError and of all its subclasses."""
    nodes = [node for tree in trees for node in below(tree) if isinstance(node, ast.ClassDef)]
    classes = {node.name: {ast.unparse(base) for base in node.bases} for node in nodes}
    names: set[str] = set()
    more = {"TorchbusError"}
    while more - names:
        names |= more
        more = {name for name, bases in classes.items() if bases & names}
    return names


def module(path: Path) -> str:
    """The name by which a source is imported."""
    return path.with_suffix("").as_posix().rpartition("/src/")[2].replace("/", ".")


def imported(tree: ast.Module, modules: dict[str, Names]) -> Names:
    """Texts of other files that a file imports: by name, or with their module."""
    names: Names = {}
    for node in below(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchbus"):
            names |= modules.get(node.module or "", {})
            for one in node.names:
                there = modules.get(f"{node.module}.{one.name}", {})
                names |= {f"{one.name}.{key}": text for key, text in there.items()}
    return names


def spoken(tree: ast.Module, speaking: set[str], others: Names) -> Iterator[str]:
    constants = others | returned(tree) | assigned(tree.body)
    functions = [node for node in below(tree) if isinstance(node, ast.FunctionDef)]
    for scope, names in [
        (tree, constants),
        *((one, constants | assigned(below(one))) for one in functions),
    ]:
        for node in below(scope):
            if isinstance(node, ast.Call) and node.args and called(node) in speaking:
                yield from texts(node.args[0], names)


def assigned(nodes: Iterable[ast.AST]) -> Names:
    """Names and all expressions that are assigned to them."""
    names: Names = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.setdefault(node.targets[0].id, []).append(node.value)
    return names


def returned(tree: ast.Module) -> Names:
    """The functions of a file and all expressions that they return: a message may be made by one of
    them.
    """
    functions = [node for node in below(tree) if isinstance(node, ast.FunctionDef)]
    return {
        f"{one.name}()": [
            node.value for node in below(one) if isinstance(node, ast.Return) and node.value
        ]
        for one in functions
    }


def called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def texts(node: ast.expr, names: Names) -> list[str]:
    """All texts that an expression can be; ``names`` are what it may refer to."""
    if isinstance(node, ast.Constant):
        return [node.value if isinstance(node.value, str) else GAP]
    if isinstance(node, ast.JoinedStr):
        return [
            "".join(
                str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values
            )
        ]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [
            left + right
            for left, right in itertools.product(texts(node.left, names), texts(node.right, names))
        ]
    if isinstance(node, ast.IfExp):
        return texts(node.body, names) + texts(node.orelse, names)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "format"
    ):
        return [re.sub(r"\{[^{}]*\}", GAP, text) for text in texts(node.func.value, names)]
    name = (
        ast.unparse(node)
        if isinstance(node, ast.Name | ast.Attribute)
        else f"{called(node)}()"
        if isinstance(node, ast.Call)
        else ""
    )
    rest = {other: values for other, values in names.items() if other != name}
    return [text for value in names.get(name, []) for text in texts(value, rest)] or [GAP]
