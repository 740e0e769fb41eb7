"""Write docs/events.md from the files that declare events::

    python docs/generate_events.py            # write it
    python docs/generate_events.py --check    # exit status 1 if it is not up to date

Read as text, not imported: nothing needs to be installed.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from written import run

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "events.md"
INTRODUCTION = """\
# Events

<!-- docs/generate_events.py writes this page from the files that declare the events. -->

"""


STEPS = """
From `batch_wanted` to `step_failed`, the step in progress is meant. `after_optimizer_step`,
`skip_logging`, `log_metrics` and `metrics_ready` belong to a finished step.
"""


def page() -> str:
    """The whole text."""
    core = ROOT / "core/src/torchbus/events.py"
    added = sorted(
        path for group in ("plugins", "contrib") for path in ROOT.glob(f"{group}/*/src/*/events.py")
    )
    loop = re.findall(r"[a-z_]+", "".join(re.findall(r"#.*", _docstring(core))))
    in_loop = [(f, path) for path in (core, *added) for f in _declared(path) if f.name in loop]
    in_loop.sort(key=lambda one: loop.index(one[0].name))
    parts = [INTRODUCTION + _overview(core) + STEPS]
    for f, path in in_loop:
        parts.append(_event(f, "##", "" if path == core else _package(path)))
    for path in added:
        others = [function for function in _declared(path) if function.name not in loop]
        if others:
            words = _paragraphs(_docstring(path))
            parts.append(f"## Further events that {_package(path)} adds\n\n{words}")
            parts += [_event(function, "###") for function in others]
    return "\n".join(parts)


def _package(path: Path) -> str:
    return path.parent.name.replace("_", "-")


def _overview(path: Path) -> str:
    """The module's docstring: its first words, the loop, and the rest."""
    before, loop, after = re.split(
        r"^::\n\n((?:    .*\n|\n)+)", _docstring(path), maxsplit=1, flags=re.M
    )
    loop = "\n".join(line[4:] for line in loop.rstrip().splitlines())
    return f"{_paragraphs(before)}\n```text\n{loop}\n```\n\n{_paragraphs(after)}"


def _event(function: ast.FunctionDef, heading: str, package: str = "") -> str:
    text = ast.get_docstring(function) or ""
    arguments = [
        f"{argument.arg}: {ast.unparse(argument.annotation or ast.Constant(None))}"
        for argument in function.args.args
    ]
    answer = ast.unparse(function.returns or ast.Constant(None))
    signature = f"def {function.name}({', '.join(arguments)}) -> {answer}"
    note = "\nThe first answer counts.\n" if _first_result(function) else ""
    note += f"\nDeclared by {package}.\n" if package else ""
    return f"{heading} `{function.name}`\n\n```text\n{signature}\n```\n\n{_paragraphs(text)}{note}"


def _declared(path: Path) -> list[ast.FunctionDef]:
    """The functions marked as events, in the order of the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any(_marks(one) for one in node.decorator_list)
    ]


def _marks(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).split("(")[0].endswith("hookspec")


def _first_result(function: ast.FunctionDef) -> bool:
    return any(
        "firstresult=True" in ast.unparse(decorator) for decorator in function.decorator_list
    )


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def _paragraphs(text: str) -> str:
    """The docstring's words as Markdown: one line for each paragraph, single backquotes."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]
    return "\n\n".join(paragraphs).replace("``", "`") + "\n"


if __name__ == "__main__":
    sys.exit(run(PAGE, page, __doc__))
