"""Write what the core says of the packages of this repository, from what they declare::

    python core/generate.py            # write it
    python core/generate.py --check    # exit status 1 if it is not up to date

``_bus/catalog.py`` names packages for the pip command in error messages. ``_session/verbs.py`` has
the signatures of their verbs, for type checkers and editors.
"""

from __future__ import annotations

import argparse
import ast
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
KINDS = ("strategy", "logger", "option", "verb", "event", "companion", "command", "testing")
GROUPS = {"plugin": "torchbus"} | {kind: f"torchbus.{kind}" for kind in KINDS}
"""The groups of entry points, by what a package contributes."""
WRITTEN = "Written by core/generate.py from the packages: change those, and run it again."
Member = ast.FunctionDef | ast.AnnAssign
NOTHING = ast.Constant(None)
Import = tuple[str, str]  # a module, and a name in it or ""
DOC = '    """What ``s.`` has beside the session\'s own methods."""\n\n'
CATALOG = f'''\
"""The packages of this repository by what they contribute, for the pip command in error messages.

{WRITTEN}
"""

from __future__ import annotations

DISTRIBUTIONS: dict[str, dict[str, str]] = {{
'''
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


def catalog() -> str:
    lines = [CATALOG]
    for kind in GROUPS:
        lines.append(f'    "{kind}": {{\n')
        for _, project in projects():
            lines += [f'        "{name}": "{project["name"]}",\n' for name in points(project, kind)]
        lines.append("    },\n")
    return "".join([*lines, "}\n"])


def verbs() -> str:
    """A class with the signature and docstring of every verb."""
    imports: set[Import] = set()
    free: set[str] = set()
    members = []
    for folder, project in projects():
        for verb in points(project, "verb"):
            module, member = _definition(folder, verb)
            members.append(_stub(verb, member))
            imports |= set(_imports(module, _annotations(member)))
            free |= _annotations(member) & _type_variables(module)
    body = "".join(members).rstrip()
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
    arguments = re.sub(r"(: [\w\[\], .|]+)=", r"\1 = ", ast.unparse(member.args))
    lines.append(f"def {verb}({arguments}) -> {ast.unparse(member.returns or NOTHING)}:")
    lines += [f'    """{doc}"""', "    raise NotImplementedError"]
    return "".join(f"    {line}\n" for line in lines) + "\n"


def _annotations(member: Member) -> set[str]:
    """The names that a stub uses."""
    if isinstance(member, ast.AnnAssign):
        wanted: list[ast.AST] = [member.annotation]
    else:
        wanted = [
            member.args,
            *member.decorator_list,
            *([member.returns] if member.returns else []),
        ]
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
    """Import statements: Python's own modules, a blank line, and others."""
    blocks: dict[bool, list[str]] = {False: [], True: []}
    plain = sorted(module for module, name in imports if not name)
    for module in [*plain, *sorted({module for module, name in imports if name})]:
        names = sorted(name for owner, name in imports if owner == module and name)
        strange = module.partition(".")[0] not in sys.stdlib_module_names
        is_plain = module in plain and f"import {module}" not in blocks[strange]
        line = f"import {module}" if is_plain else f"from {module} import {', '.join(names)}"
        blocks[strange].append(line)
    return "\n\n".join("\n".join(lines) for lines in blocks.values() if lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("::")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and compare")
    written = {SOURCES / "_bus/catalog.py": catalog(), SOURCES / "_session/verbs.py": verbs()}
    if parser.parse_args().check:
        old = [path.name for path, text in written.items() if path.read_text("utf-8") != text]
        print(f"run python core/generate.py: old are {old}" if old else "up to date")
        return int(bool(old))
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
