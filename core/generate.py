"""Write what the core says of the packages of this repository, from what they declare::

    python core/generate.py            # write it
    python core/generate.py --check    # exit status 1 if it is not up to date

``distributions.json`` names packages for the pip command in error messages. ``known_verbs.pyi``
has the signatures of their verbs, and ``known_options.pyi`` the types of their options, for type
checkers and editors. Options are read from the installed packages: run it in their environment.
``INDEX.md`` is the README of the repository, with links that work on the package index.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "core/src/torchbus"
KINDS = (
    "strategy", "combination", "preset", "logger", "option", "verb", "event", "companion",
    "command", "testing", "service", "always", "default",
)  # fmt: skip
GROUPS = {"plugin": "torchbus"} | {kind: f"torchbus.{kind}" for kind in KINDS}
"""The groups of entry points, by what a package contributes."""
REPOSITORY = "https://github.com/torchbus/torchbus"
RAW = "https://raw.githubusercontent.com/torchbus/torchbus/main"
WRITTEN = "Written by core/generate.py from the packages: change those, and run it again."
Member = ast.FunctionDef | ast.AnnAssign
NOTHING = ast.Constant(None)
Import = tuple[str, str]  # a module, and a name in it or ""
DOC = '    """What ``s.`` has beside the session\'s own methods."""\n\n'
VERBS = f'''\
"""The verbs of this repository's packages, for type checkers and editors. Nothing imports it.

{WRITTEN}
"""

from __future__ import annotations

'''


def projects() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each package's folder and what its pyproject.toml declares."""
    for group in ("plugins", "contrib"):
        for path in sorted(ROOT.glob(f"{group}/*/pyproject.toml")):
            yield path.parent, tomllib.loads(path.read_text(encoding="utf-8"))["project"]


def points(project: dict[str, Any], kind: str) -> dict[str, str]:
    """A package's entry points of a kind."""
    return dict(project.get("entry-points", {}).get(GROUPS[kind], {}))


def distributions() -> str:
    """The distribution of each name that a package contributes, by kind; a default's value."""
    found = {
        kind: {name: project["name"] for _, project in projects() for name in points(project, kind)}
        for kind in GROUPS
        if kind != "always"
    }
    found["default"] = {
        name: value
        for _, project in projects()
        for name, value in points(project, "default").items()
    }
    found["strategy"] |= found.pop("preset")  # in a call, both are values of strategy=
    return json.dumps(found, indent=1) + "\n"


def verbs() -> str:
    """A class with the signature and docstring of every verb."""
    imports: set[Import] = set()
    free: set[str] = set()
    members = []
    for folder, project in projects():
        for verb in points(project, "verb"):
            module, member = _definition(folder, verb)
            _spell_out_options(folder, member)
            members.append(_stub(verb, member))
            imports |= set(_imports(module, _annotations(member)))
            free |= _annotations(member) & _type_variables(module)
    body = "".join(members).rstrip()
    if "Literal[" in body:
        imports.add(("typing", "Literal"))
    variables = "".join(f'{name} = TypeVar("{name}")\n' for name in sorted(free))
    head = _head(imports) + (f"\n{variables}" if variables else "")
    return f"{VERBS}{head}\n\nclass KnownVerbs:\n{DOC}{body}\n"


def _definition(folder: Path, verb: str) -> tuple[ast.Module, Member]:
    """Where a package's plugin defines a verb: its method, or the attribute that it sets."""
    for path in sorted(folder.glob("src/**/*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for cls in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
            if not any(_lists(node, verb) for node in cls.body):
                continue
            found = next((node for node in ast.walk(cls) if _defines(node, verb)), None)
            if isinstance(found, Member):
                return tree, found
    raise LookupError(f"{folder.name} defines no s.{verb}, or with no docstring or annotation")


def _defines(node: ast.AST, verb: str) -> bool:
    """Whether it is a method with a docstring, or sets an attribute with an annotation."""
    if isinstance(node, ast.FunctionDef):
        return node.name == verb and ast.get_docstring(node) is not None
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == f"self.{verb}"


def _lists(node: ast.stmt, verb: str) -> bool:
    """Whether it is a ``verbs = (...)`` of a plugin that names this one."""
    return (
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "verbs"
        and verb in ast.literal_eval(node.value)
    )


def _stub(verb: str, member: Member) -> str:
    if isinstance(member, ast.AnnAssign):
        return f"    {verb}: {ast.unparse(member.annotation)}\n\n"
    doc = ast.get_docstring(member, clean=False)
    lines = [f"@{ast.unparse(one)}" for one in member.decorator_list]
    arguments = re.sub(r"(: [\w\[\], .|']+)=", r"\1 = ", ast.unparse(member.args)).replace("'", '"')
    head, tail = f"def {verb}(", f") -> {ast.unparse(member.returns or NOTHING)}:"
    if len(head + arguments + tail) <= 96:
        lines.append(head + arguments + tail)
    else:
        lines += [head, *(f"    {one}," for one in _split(arguments)), tail]
    returns_nothing = tail.endswith("-> None:")  # a checker wants a body of all others
    lines += [f'    """{doc}"""', *([] if returns_nothing else ["    raise NotImplementedError"])]
    return "".join(f"    {line}\n" for line in lines) + "\n"


def _split(arguments: str) -> list[str]:
    """Split at the commas that are in no brackets."""
    return re.split(r", (?![^\[]*\])", arguments)


def _spell_out_options(folder: Path, member: Member) -> None:
    """Replace ``**options: Unpack[Options]`` by the members of that TypedDict."""
    given = member.args.kwarg if isinstance(member, ast.FunctionDef) else None
    if given is None or not isinstance(given.annotation, ast.Subscript):
        return
    assert isinstance(member, ast.FunctionDef)
    name = ast.unparse(given.annotation.slice)
    trees = [ast.parse(path.read_text("utf-8")) for path in sorted(folder.glob("src/**/*.py"))]
    nodes = [node for tree in trees for node in tree.body]
    options = next(one for one in nodes if isinstance(one, ast.ClassDef) and one.name == name)
    aliases = {
        ast.unparse(one.targets[0]): one.value for one in nodes if isinstance(one, ast.Assign)
    }
    member.args.kwarg = None
    for one in [node for node in options.body if isinstance(node, ast.AnnAssign)]:
        kind = aliases.get(ast.unparse(one.annotation), one.annotation)
        member.args.kwonlyargs.append(ast.arg(ast.unparse(one.target), kind))
        member.args.kw_defaults.append(ast.Constant(...))


def _annotations(member: Member) -> set[str]:
    """The names that a stub uses."""
    if isinstance(member, ast.AnnAssign):
        wanted: list[ast.AST] = [member.annotation]
    else:
        wanted = [member.args, *member.decorator_list, member.returns or NOTHING]
    return {node.id for one in wanted for node in ast.walk(one) if isinstance(node, ast.Name)}


def _imports(module: ast.Module, names: set[str]) -> Iterator[Import]:
    """The imports of the module that give these names."""
    for node in module.body:
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", one.name) for one in node.names if one.name in names)
        elif isinstance(node, ast.Import):
            yield from ((one.name, "") for one in node.names if one.name in names)
    if names & _type_variables(module):
        yield "typing", "TypeVar"


def _type_variables(module: ast.Module) -> set[str]:
    return {
        ast.unparse(node.targets[0])
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("TypeVar(")
    }


def _head(imports: set[Import]) -> str:
    """Import statements in three blocks: of Python itself, of others, of this repository."""
    blocks: dict[str, list[str]] = {"python": [], "others": [], "torchbus": []}
    for module in sorted({module for module, name in imports if not name}):
        blocks[_origin(module)].append(f"import {module}")
    for module in sorted({module for module, name in imports if name}):
        names = sorted(name for owner, name in imports if owner == module and name)
        blocks[_origin(module)].append(f"from {module} import {', '.join(names)}")
    return "\n\n".join("\n".join(lines) for lines in blocks.values() if lines) + "\n"


def _origin(module: str) -> str:
    package = module.partition(".")[0]
    if package in sys.stdlib_module_names:
        return "python"
    return "torchbus" if package.startswith("torchbus") else "others"


def options() -> str:
    """The types of all options, by the code of ``torchbus stubs``."""
    from torchbus_cli import options, stubs

    declared = [project for _, project in projects()]
    packages = {project["name"] for project in declared}
    names = {
        kind: [name for project in declared for one in kinds for name in points(project, one)]
        for kind, kinds in stubs.KINDS.items()
    }
    found = [one for one in options.known_options() if one.package in packages]
    return stubs.known_text(found, names, WRITTEN)


def index_page() -> str:
    """The first page of the repository, for the package index, which has no files beside it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{RAW}/", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\1{REPOSITORY}/blob/main/", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("::")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and compare")
    written = {
        SOURCES / "bus/distributions.json": distributions(),
        SOURCES / "known_verbs.pyi": verbs(),
        SOURCES / "known_options.pyi": options(),
        ROOT / "core/INDEX.md": index_page(),
    }
    if parser.parse_args().check:
        old = [path.name for path, text in written.items() if path.read_text("utf-8") != text]
        print(f"run python core/generate.py: old are {old}" if old else "up to date")
        return int(bool(old))
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
