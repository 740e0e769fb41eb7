"""Write docs/first-lines.md from the docstrings of modules and public classes::

    python docs/generate_first_lines.py            # write it
    python docs/generate_first_lines.py --check    # exit status 1 if it is not up to date

Read as text, not imported: nothing needs to be installed.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from written import run

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "first-lines.md"
INTRODUCTION = """\
# First lines

What each module and each public class of the packages is or does: the first line of its docstring.
For people who change torchbus. Read [the architecture](architecture.md) before, and a package here
from top to bottom. Written by `docs/generate_first_lines.py`; do not edit it by hand.
"""


def page() -> str:
    """Return the whole page."""
    sources = [ROOT / "core", *sorted(ROOT.glob("plugins/*")), *sorted(ROOT.glob("contrib/*"))]
    return INTRODUCTION + "".join(_package(one) for one in sources if (one / "src").is_dir())


def _package(folder: Path) -> str:
    """Return a section with the modules of a package."""
    lines: list[str] = []
    for path in sorted((folder / "src").rglob("*.py"), key=_order):
        lines += _module(path, folder / "src")
    return f"\n## {folder.relative_to(ROOT)}\n\n" + "\n".join(lines) + "\n"


def _order(path: Path) -> tuple[Path, bool, str]:
    """The ``__init__`` of a folder precedes its modules."""
    return path.parent, path.stem != "__init__", path.stem


def _module(path: Path, root: Path) -> list[str]:
    """Return a list item for the module, and one inside of it for each public class."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    classes = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name[0] != "_"]
    items = [f"- `{name}`: {first_line(tree)}" if first_line(tree) else f"- `{name}`"]
    items += [f"    - `{one.name}`: {first_line(one)}" for one in classes if first_line(one)]
    return items if len(items) > 1 or first_line(tree) else []


def first_line(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    """Return the first paragraph of the docstring in one line, with backticks of Markdown."""
    first = (ast.get_docstring(node) or "").partition("\n\n")[0]
    parts = " ".join(first.split()).split("``")
    parts[::2] = [one.replace("<", "&lt;").replace("|", "&#124;") for one in parts[::2]]
    return "`".join(parts)


if __name__ == "__main__":
    sys.exit(run(PAGE, page, __doc__))
