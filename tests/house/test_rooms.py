"""The house: what may import what, and how long a module may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from torchbus import session

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(
    path for group in ("plugins", "contrib") for path in ROOT.glob(f"{group}/*/src/torchbus_*")
)
DOORS = ("torchbus.plugin", "torchbus_log.trackers", "torchbus_testing")
LINES_AT_MOST = 600
SOURCES = [ROOT / "core/src/torchbus", ROOT / "plugins/testing/src/torchbus_pytest", *PACKAGES]


def imported(path: Path) -> Iterator[str]:
    """Modules of this project that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def strangers(package: Path) -> list[str]:
    """Imports of a plugin that go past the door, or into another plugin."""
    allowed = (package.name, *DOORS)
    return [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(package.rglob("*.py"))
        for name in imported(path)
        if name.startswith("torchbus")
        and not any(name == one or name.startswith(f"{one}.") for one in allowed)
    ]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_plugin_comes_in_by_the_door(package: Path) -> None:
    assert strangers(package) == []


def test_pages_show_no_other_way_in() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*/README.md")]
    shown = {
        (page.name, name)
        for page in pages
        for name in re.findall(r"^(?:from|import) (torchbus[\w.]*)", page.read_text("utf-8"), re.M)
    }
    public = {"torchbus", "torchbus_testing.conformance", *DOORS}
    public |= {package.name for package in PACKAGES}
    assert {one for one in shown if one[1] not in public} == set()


def test_no_source_is_long() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines())
        for source in SOURCES
        for path in source.rglob("*.py")
    }
    assert {path: length for path, length in lengths.items() if length > LINES_AT_MOST} == {}


def test_the_rooms_of_the_contributors_page_are_there() -> None:
    rooms = re.findall(
        r"^\| [^|]+ \| `((?:core|plugins)/[\w/]+)` \|$",
        (ROOT / "CONTRIBUTING.md").read_text("utf-8"),
        re.M,
    )
    assert len(rooms) == 11 and [room for room in rooms if not (ROOT / room).is_dir()] == []


def test_the_members_of_a_context_on_the_page_are_there() -> None:
    members = re.findall(
        r"^\| `session\.(\w+)` \|", (ROOT / "docs/writing-a-plugin.md").read_text("utf-8"), re.M
    )
    with session() as s:
        assert (
            len(members) > 10
            and [member for member in members if not hasattr(s._context, member)] == []
        )


def test_each_room_says_what_lives_there() -> None:
    rooms = [init for source in SOURCES for init in source.rglob("__init__.py")]
    assert [
        str(init.relative_to(ROOT))
        for init in rooms
        if not ast.get_docstring(ast.parse(init.read_text("utf-8")))
    ] == []


@pytest.mark.parametrize("package", SOURCES, ids=lambda path: path.name)
def test_no_modules_import_each_other(package: Path) -> None:
    """Not in circles either, and not only for types."""
    modules = {
        ".".join([package.name, *path.relative_to(package).with_suffix("").parts]): path
        for path in package.rglob("*.py")
    }
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    left = {name: set(needed(name, path, modules)) for name, path in modules.items()}
    while free := {name for name, needs in left.items() if not needs & left.keys()}:
        left = {name: needs for name, needs in left.items() if name not in free}
    assert sorted(left) == []


def needed(name: str, path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """The modules of the same package that one imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found = f"{node.module}.{alias.name}"
                found = found if found in modules else node.module
                if found in modules and found != name:
                    yield found
