"""Only the doors on the contributors' page name CUDA or NCCL in code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    path
    for folder in ("core/src", "plugins/*/src", "contrib/*/src")
    for path in ROOT.glob(f"{folder}/**/*.py")
    if not {"torchbus_testing", "torchbus_simulator"} & {*path.parts}
]
CUDA = re.compile(r"torch\.cuda|\bnccl\b")


def test_the_doors_are_those_of_the_page() -> None:
    listed = re.findall(
        r"^\| `((?:core|plugins|contrib)/\S+\.py)` \|",
        (ROOT / "CONTRIBUTING.md").read_text("utf-8"),
        re.M,
    )
    found = [str(path.relative_to(ROOT)) for path in SOURCES if any(cuda_in(path))]
    assert len(SOURCES) > 300 and sorted(found) == sorted(listed)


def cuda_in(path: Path) -> Iterator[str]:
    """Names and strings of the code that are CUDA's; docstrings and patterns for scripts are not."""
    text = path.read_text("utf-8")
    tree = ast.parse(text if CUDA.search(text) else "")
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and CUDA.search(ast.unparse(node)):
            yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and id(node) not in said:
            yield from CUDA.findall(str(node.value))
