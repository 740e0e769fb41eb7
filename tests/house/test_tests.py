"""The house of the tests: no long file, no long script in a string, no heap of files in one folder,
and what makes tests slow without anybody's notice.
"""

from __future__ import annotations

import ast
import gc
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pairs import covering, mixed, pairs, with_new_pairs

ROOT = Path(__file__).resolve().parents[2]
LINES_AT_MOST = 600
LINES_OF_A_STRING = 80
MODULES_AT_MOST = 15
COLD_AT_MOST = 9
FILES = [
    path
    for pattern in ("core/tests", "plugins/*/tests", "contrib/*/tests", "tests")
    for folder in ROOT.glob(pattern)
    for path in sorted(folder.rglob("*.py"))
]


def long_strings(path: Path) -> Iterator[int]:
    """The lines at which strings begin that should be files."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        text = isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        if text and (node.end_lineno or 0) - node.lineno - 1 > LINES_OF_A_STRING:
            yield node.lineno


def test_no_test_file_is_long() -> None:
    lengths = {str(path.relative_to(ROOT)): path.read_text("utf-8").count("\n") for path in FILES}
    assert len(lengths) > 200
    assert {path: length for path, length in lengths.items() if length > LINES_AT_MOST} == {}


def test_long_scripts_are_files_of_their_own() -> None:
    """In ``scripts/`` beside the test, where ruff reads and formats them."""
    assert [
        f"{path.relative_to(ROOT)}:{line}" for path in FILES for line in long_strings(path)
    ] == []


def test_the_tests_of_several_packages_stand_by_subject() -> None:
    """In the folders of the contributors' page, and in no other."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    listed = re.findall(r"^\| `(tests/\w+)` \|", page, re.M)
    assert sorted(path.relative_to(ROOT).as_posix() for path in folders) == listed
    sizes = {path.name: len(list(path.glob("*.py"))) for path in [ROOT / "tests", *folders]}
    assert {name: size for name, size in sizes.items() if size > MODULES_AT_MOST} == {}


def cold_starts(path: Path) -> int:
    """In how many places a test file starts a Python that imports torch for itself."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    names = [func.id if isinstance(func, ast.Name) else getattr(func, "attr", "") for func in calls]
    places = [node for node in nodes if isinstance(node, ast.Attribute)]
    return names.count("run_script") + sum(
        isinstance(one.value, ast.Name) and (one.value.id, one.attr) == ("sys", "executable")
        for one in places
    )


def test_few_tests_of_a_file_start_a_cold_python() -> None:
    found = {str(path.relative_to(ROOT)): cold_starts(path) for path in FILES}
    assert max(found.values()) > 5
    assert {path: number for path, number in found.items() if number > COLD_AT_MOST} == {}


def test_sessions_look_through_few_objects(request: pytest.FixtureRequest) -> None:
    """Neither through torch's nor through those of the test modules: see ``tests/heap.py``."""
    seen = {id(thing) for thing in (torch.nn.Linear, vars(torch), globals(), request.session.items)}
    assert not any(id(one) in seen for one in gc.get_objects())


def test_few_rows_have_each_pair_of_factors() -> None:
    every = mixed(itertools.product("abcde", range(20), ("fork", "script"), (2, 3)))
    before = every[:3]
    few = covering(every, before)
    assert len(few) <= 100 == 5 * 20
    found = {pair for row in (*before, *few) for pair in pairs(row)}
    assert found == {pair for row in every for pair in pairs(row)}
    assert len(with_new_pairs(every)) > len(few)
