"""The house: what may import what, and how long a module may be."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torchbus import session

from torchbus_testing import run

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(
    path for group in ("plugins", "contrib") for path in ROOT.glob(f"{group}/*/src/torchbus_*")
)
KITS = {"cli", "device", "launch", "rank0", "redaction", "simulator", "strategy", "testing"}
"""What was made for authors of strategies, commands and tests: they know the core's modules."""
DOORS = (
    "torchbus.plugin",
    "torchbus.bus.registry",
    "torchbus.bus.verbs",
    "torchbus.compat",
    "torchbus.objects",
    "torchbus.patches.patching",
    "torchbus.runtime.services",
    "torchbus.runtime.steps",
    "torchbus.runtime.user_code",
    "torchbus.tree",
    "torchbus.world",
)
LINES_AT_MOST = 600
SOURCES = [ROOT / "core/src/torchbus", ROOT / "plugins/testing/src/torchbus_pytest", *PACKAGES]


def imported(path: Path) -> Iterator[str]:
    """Modules of this project that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def declared(package: Path) -> set[str]:
    """The packages of this repository that one's metadata asks for."""
    text = (package.parents[1] / "pyproject.toml").read_text("utf-8")
    listed = re.search(r"^dependencies = \[(.*?)\]", text, re.M | re.S)
    names = re.findall(r'"torchbus-([\w-]+)', listed[1] if listed else "")
    return {f"torchbus_{name.replace('-', '_')}" for name in names}


def strangers(package: Path) -> list[str]:
    """Imports of a plugin that go past the doors, or into a package that it does not declare."""
    allowed = {package.name, *DOORS, *declared(package)}
    if package.name.removeprefix("torchbus_") in KITS:
        allowed.add("torchbus")
    return [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(package.rglob("*.py"))
        for name in imported(path)
        if name.startswith("torchbus") and name != "torchbus"
        if not any(name == one or name.startswith(f"{one}.") for one in allowed)
    ]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_plugin_comes_in_by_the_doors(package: Path) -> None:
    assert strangers(package) == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="import-linter needs Python 3.11")
def test_the_layers_hold() -> None:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = run([sys.executable, "-c", command, "--no-cache"], cwd=ROOT)
    assert done.ok(), done.stdout


def test_every_package_has_a_layer() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    contracts = text[text.index("[tool.importlinter]") :]
    assert [one.name for one in PACKAGES if not re.search(rf"\b{one.name}\b", contracts)] == []


def test_pages_show_no_other_way_in() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*/README.md")]
    shown = {
        (page.name, name)
        for page in pages
        for name in re.findall(r"^(?:from|import) (torchbus[\w.]*)", page.read_text("utf-8"), re.M)
    }
    public = {"torchbus", *DOORS, *(package.name for package in PACKAGES), "torchbus_log.trackers"}
    kits = tuple(f"torchbus_{name}." for name in KITS)
    assert {one for one in shown if one[1] not in public and not one[1].startswith(kits)} == set()


def test_no_source_is_long() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines())
        for source in SOURCES
        for path in source.rglob("*.py")
    }
    assert {path: length for path, length in lengths.items() if length > LINES_AT_MOST} == {}


def test_no_two_classes_have_one_name() -> None:
    """A reader who looks for a class by its name finds one. The zoo's scripts are not read."""
    found: dict[str, list[str]] = {}
    for path in (path for source in SOURCES for path in source.rglob("*.py")):
        if "zoo" not in path.parts:
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_the_rooms_of_the_contributors_page_are_there() -> None:
    rooms = re.findall(
        r"^\| [^|]+ \| `((?:core|plugins)/[\w/.]+)` \|$",
        (ROOT / "CONTRIBUTING.md").read_text("utf-8"),
        re.M,
    )
    assert len(rooms) == 14 and [room for room in rooms if not (ROOT / room).exists()] == []


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


def test_no_modules_import_each_other() -> None:
    """Not in circles either, not only for types, and not over packages."""
    modules = {
        ".".join([package.name, *path.relative_to(package).with_suffix("").parts]): path
        for package in SOURCES
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
