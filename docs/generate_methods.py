"""Write docs/methods.md from the session, and from the stubs of the packages' verbs::

    python docs/generate_methods.py            # write it
    python docs/generate_methods.py --check    # exit status 1 if it is not up to date

Read as text, not imported: nothing needs to be installed. core/generate.py writes the stubs.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from generate_first_lines import first_line
from written import run

SOURCES = Path(__file__).resolve().parent.parent / "core/src/torchbus"
PAGE = Path(__file__).resolve().parent / "methods.md"
INTRODUCTION = """\
# Methods of `s`

<!-- docs/generate_methods.py writes this page from the sources. -->

`s` is the session in `with session(...) as s:`. The [cheat sheet](cheat-sheet.md#methods-of-s) has
the most common methods by task. The docstring of each method says which ranks call it and which
errors it raises: `help(s.reduce)`.
"""


def page() -> str:
    """The whole text."""
    own = {one.name: one for file in ("world", "session") for one in _methods(file)}
    verbs = {one.name: one for one in _methods("known_verbs")}
    packages = json.loads((SOURCES / "bus/distributions.json").read_text("utf-8"))["verb"]
    parts = [INTRODUCTION, _section("Every session", [own[name] for name in sorted(own)])]
    for package in sorted({*packages.values()}):
        parts.append(
            _section(package, [verbs[one] for one in packages if packages[one] == package])
        )
    return "\n".join(parts)


def _methods(file: str) -> Iterator[ast.FunctionDef]:
    """The public methods and properties of the classes of which a session consists."""
    path = next(SOURCES.glob(f"{file}.py*"))
    for cls in ast.parse(path.read_text("utf-8")).body:
        if isinstance(cls, ast.ClassDef) and cls.name in ("Ranks", "Session", "KnownVerbs"):
            members = [one for one in cls.body if isinstance(one, ast.FunctionDef)]
            yield from (one for one in members if not one.name.startswith("_"))


def _section(title: str, methods: list[ast.FunctionDef]) -> str:
    lines = [f"- `s.{_signature(one)}`: {first_line(one)}" for one in methods]
    return f"## {title}\n\n" + "\n".join(lines) + "\n"


def _signature(method: ast.FunctionDef) -> str:
    returned = ast.unparse(method.returns or ast.Constant(None))
    if "property" in map(ast.unparse, method.decorator_list):
        return f"{method.name}: {returned}"
    arguments = re.sub(r"^self(, )?", "", ast.unparse(method.args)).replace("'", '"')
    arguments = re.sub(r'(: [\w\[\], .|"]+)=', r"\1 = ", arguments)
    return f"{method.name}({arguments}) -> {returned}"


if __name__ == "__main__":
    sys.exit(run(PAGE, page, __doc__))
