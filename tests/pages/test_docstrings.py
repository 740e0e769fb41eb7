"""Docstrings of what users and authors of plugins call: shapes, ranks that must call, errors.

Public are the session and its verbs, the names of ``torchbus.plugin`` and of the modules beside it,
events, plugins that have a name, and names of a kit that another package imports. Read as text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [
    folder
    for pattern in ("core", "plugins/*", "contrib/*")
    for folder in sorted(ROOT.glob(f"{pattern}/src"))
]
MODULES = {
    ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in FOLDERS
    for path in folder.rglob("*.py")
}
WHOLE = (
    "torchbus.errors",
    "torchbus.events",
    "torchbus.objects",
    "torchbus.plugin",
    "torchbus.session",
    "torchbus.tree",
    "torchbus.world",
    "torchbus_log.trackers",
    "torchbus_strategy.strategy",
    "torchbus_testing",
    "torchbus_testing.conformance",
)
KITS = re.compile(r"torchbus_(?:cli|device|launch|rank0|redaction|strategy)\b")
ENTRIES = re.compile(r'entry-points\."?torchbus(?:\.(\w+))?"?\]\n(.*?)(?:\n\n|\n\[|\Z)', re.S)
GROUPS = {"", "event", "logger", "strategy", "verb"}
COLLECTIVES = {
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_object",
    "monitored_barrier",
    "new_group",
}
TENSORS = re.compile(r"\b(?:shapes?|dtypes?|dim|dimensions?|elements?|uint8|(?:channels|width)\))")
RANKS = re.compile(r"\branks?\b", re.I)
NO_ERROR = {"NotImplementedError", "StopIteration", "AttributeError"}
Node = ast.FunctionDef | ast.ClassDef


class Public(NamedTuple):
    name: str
    node: Node
    docs: str
    """Its docstring; of a constructor, that of its class."""


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text("utf-8"))


def found(module: str, name: str) -> Iterator[tuple[str, Node]]:
    """The function or class that a module has under a name, also if it imports it."""
    for node in tree(module).body if module in MODULES else []:
        if isinstance(node, Node) and node.name == name:
            yield f"{module}.{name}", node
        elif isinstance(node, ast.ImportFrom) and any(
            (alias.asname or alias.name) == name for alias in node.names
        ):
            yield from found(node.module or "", name)


def listed(module: str) -> set[str]:
    """The names of ``__all__``, or else the public ones."""
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return {one.name for one in tree(module).body if isinstance(one, Node) and one.name[0] != "_"}


def entries() -> Iterator[tuple[str, str, str]]:
    """Entry points of plugins, verbs and events: the key, and the module and the name there."""
    for path in (folder.parent / "pyproject.toml" for folder in FOLDERS):
        for group, lines in ENTRIES.findall(path.read_text("utf-8")):
            for key, module, name in re.findall(r'^"?([\w.-]+)"? = "([\w.]+):?(\w*)"', lines, re.M):
                if group in GROUPS and module in MODULES:
                    verb = key if group == "verb" else ""
                    yield from ((verb, module, one) for one in ([name] if name else listed(module)))


def imported_from_kits() -> Iterator[tuple[str, str]]:
    for module in MODULES:
        for node in ast.walk(tree(module)):
            kit = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if KITS.match(kit) and kit.partition(".")[0] != module.partition(".")[0]:
                yield from ((kit, alias.name) for alias in node.names)


@cache  # not read when tests are collected
def public() -> dict[str, Public]:
    names = {(module, name) for module in WHOLE for name in listed(module)}
    names |= {(module, name) for _, module, name in entries()} | {*imported_from_kits()}
    nodes = dict(one for module, name in sorted(names) for one in found(module, name))
    return {one.name: one for name, node in nodes.items() for one in members(name, node)}


def members(name: str, node: Node) -> Iterator[Public]:
    docs = ast.get_docstring(node) or ""
    yield Public(name, node, docs)
    for one in node.body if isinstance(node, ast.ClassDef) else []:
        if isinstance(one, ast.FunctionDef) and not listens(one):
            if one.name == "__init__":
                yield Public(f"{name}.__init__", one, docs)
            elif one.name[0] != "_":
                yield Public(f"{name}.{one.name}", one, docstring(name, node, one.name))


def docstring(name: str, node: Node, method: str) -> str:
    """That of a method, or of the one that it overrides."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == method and ast.get_docstring(one):
            return ast.get_docstring(one) or ""
    bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
    above = (one for base in bases for one in found(name.rpartition(".")[0], base))
    return next((docs for one in above if (docs := docstring(*one, method))), "")


def listens(function: ast.FunctionDef) -> bool:
    """Whether it implements an event, an overload or a setter, which is documented elsewhere."""
    marks = " ".join(map(ast.unparse, function.decorator_list))
    return re.search(r"\bhookimpl\b|\boverload\b|\.setter\b", marks) is not None


def functions() -> dict[str, Public]:
    return {name: one for name, one in public().items() if isinstance(one.node, ast.FunctionDef)}


def annotations(function: ast.FunctionDef) -> str:
    """Types of the arguments, but for parameters, which may be any, and of the result."""
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    kinds = [one.annotation for one in given if not one.arg.startswith("parameter")]
    kinds.append(function.returns)
    return " ".join(ast.unparse(kind) for kind in kinds if kind is not None)


def calls(function: ast.FunctionDef) -> set[str]:
    return {
        ast.unparse(node.func).rpartition(".")[2]
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
    }


def raised(function: ast.FunctionDef) -> set[str]:
    """The classes of errors that it raises itself."""
    return {
        ast.unparse(node.exc.func).rpartition(".")[2]
        for node in ast.walk(function)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
    }


def test_every_public_name_has_a_docstring() -> None:
    assert len(public()) > 400
    assert sorted(name for name, one in public().items() if not one.docs) == []


def test_what_has_tensors_says_their_shape_or_dtype() -> None:
    tensors = {n: one for n, one in functions().items() if "Tensor" in annotations(one.node)}
    assert len(tensors) > 20
    assert sorted(name for name, one in tensors.items() if not TENSORS.search(one.docs)) == []


def test_what_communicates_says_which_ranks_call_it() -> None:
    verbs = {verb for verb, _, _ in entries() if verb}
    communicates = {
        name: one
        for name, one in functions().items()
        if calls(one.node) & COLLECTIVES
        or (name.rpartition(".")[2] in verbs and ".events." not in name)
    }
    assert len(communicates) > 10
    assert sorted(name for name, one in communicates.items() if not RANKS.search(one.docs)) == []


def test_what_raises_names_the_error() -> None:
    missing = {
        name: sorted(errors)
        for name, one in functions().items()
        if (
            errors := {
                e for e in raised(one.node) - NO_ERROR if e[0].isupper() and e not in one.docs
            }
        )
    }
    assert missing == {}
