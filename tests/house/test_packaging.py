"""Each package is a wheel that installs beside the core alone, is discovered by name, and says the
same as the others.
"""

from __future__ import annotations

import json
import re
import runpy
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torchbus

from torchbus_testing.environments import empty_environment
from torchbus_testing.scripts import run

SCRIPTS = Path(__file__).parent / "scripts"

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core"
PLUGINS = sorted(
    path.parent
    for folder in ("plugins", "contrib")
    for path in (ROOT / folder).glob("*/pyproject.toml")
)
PACKAGES = [CORE, *PLUGINS]
REPOSITORY = "https://github.com/torchbus/torchbus"
RAW = "https://raw.githubusercontent.com/torchbus/torchbus/main"
MAJOR, MINOR = torchbus.__version__.split(".")[:2]
PIN = f">={MAJOR}.{MINOR},<{MAJOR}.{int(MINOR) + 1}"
GROUPS: dict[str, str] = runpy.run_path(str(CORE / "generate.py"))["GROUPS"]


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def module(folder: Path) -> str:
    return project(folder)["name"].replace("-", "_")


def test_the_root_is_the_core():
    """``pip install .`` at the root gives the core, with the README before its links are absolute."""
    assert project(ROOT) | {"readme": "INDEX.md"} == project(CORE)


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_what_each_package_has(folder):
    ours, core = project(folder), project(CORE)
    package = folder / "src" / module(folder)
    assert (folder / "README.md").read_text().startswith(f"# {ours['name']}")
    assert (package / "py.typed").exists()
    # hatchling puts it into the wheel
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert list((folder / "tests").glob("test_*.py"))
    same = ("dynamic", "license", "requires-python", "authors", "classifiers")
    assert {ours[key] == core[key] for key in same} == {True} and ours["dynamic"] == ["version"]
    assert {key: ours["urls"][key] for key in ours["urls"] if key != "Documentation"} == {
        "Source": REPOSITORY,
        "Issues": f"{REPOSITORY}/issues",
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
    }
    page = ours["urls"]["Documentation"].removeprefix(f"{REPOSITORY}/blob/main/")
    assert ROOT / page == (ROOT if folder == CORE else folder) / "README.md"
    assert folder == CORE or f"torchbus{PIN}" in ours["dependencies"]


def test_one_file_has_the_version():
    """All packages take theirs from it, and need others of the same minor version."""
    for folder in [ROOT, *PACKAGES]:
        declared = tomllib.loads((folder / "pyproject.toml").read_text())
        path = folder / declared["tool"]["hatch"]["version"]["path"]
        assert path.resolve() == CORE / "src/torchbus/__init__.py"
        pins = re.findall(
            r"\"torchbus[\w-]*([<>=~!][^\"]*)\"", (folder / "pyproject.toml").read_text()
        )
        assert set(pins) <= {PIN}


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_links_of_a_package_page_are_absolute(folder):
    """The package index shows the page without the repository around it."""
    page = folder / project(folder)["readme"]
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    assert [link for link in links if not link.startswith("https://")] == []
    own = [re.sub(rf"^({REPOSITORY}/blob/main|{RAW})/", "", link) for link in links]
    assert [path for path in own if "://" not in path and not (ROOT / path).exists()] == []


def test_the_extras_name_every_plugin():
    """``all`` replaces no torch that the rest of torchbus can use, and brings no library."""
    core = project(CORE)
    expected = {
        module(folder).removeprefix("torchbus_"): [f"{project(folder)['name']}{PIN}"]
        for folder in PLUGINS
    }
    newest_torch = {f"torchbus-pipeline{PIN}"}
    every = {line for lines in expected.values() for line in lines} - newest_torch
    for name, library in {"deepspeed": "deepspeed", "ft": "torchft"}.items():
        expected[name] = [f"torchbus-{name}[{library}]{PIN}"]
    others = {"all"}
    assert {
        name: lines for name, lines in core["optional-dependencies"].items() if name not in others
    } == expected
    assert sorted(core["optional-dependencies"]["all"]) == sorted(every)


def test_the_catalog_says_what_the_packages_contribute():
    assert run([sys.executable, CORE / "generate.py", "--check"]).ok()
    declared = {group for folder in PLUGINS for group in project(folder).get("entry-points", {})}
    assert declared - {"pytest11", "torchbus.redact", "torchbus.launched_rank"} <= set(
        GROUPS.values()
    )


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """A wheel of each package, and of the root as "root", by name of the distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    build = (SCRIPTS / "packaging_build.py", folder, *PACKAGES)
    assert run([sys.executable, *map(str, build)], timeout_s=200).ok()
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    pip += ["--no-index", "--wheel-dir", str(folder / "root"), str(ROOT)]
    assert run(pip, cwd=ROOT).ok()
    found = {path.name.split("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}
    return found | {"root": next((folder / "root").glob("*.whl"))}


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> str:
    """The Python of an environment without torchbus."""
    return empty_environment(tmp_path_factory.mktemp("environment"))


def test_every_package_is_a_wheel(wheels):
    assert set(wheels) == {project(folder)["name"] for folder in PACKAGES} | {"root"}


def test_a_wheel_holds_the_sources_and_nothing_else(wheels):
    for folder in PACKAGES:
        packages = folder / "src"
        sources = {
            str(path.relative_to(packages))
            for path in packages.rglob("*")
            if path.suffix in (".py", ".pyi", ".json", ".cpp", ".h", ".txt")
            or path.name == "py.typed"
        }
        for name in (project(folder)["name"], *(["root"] if folder == CORE else [])):
            names = zipfile.ZipFile(wheels[name]).namelist()
            assert {file for file in names if ".dist-info/" not in file} == sources
            assert any(file.endswith(".dist-info/licenses/LICENSE") for file in names)


TRAIN = (SCRIPTS / "packaged_train.py").read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ddp_brings_what_it_trains_with_and_needs_no_numpy(wheels, tmp_path):
    """As pip resolves it, into an environment that has torch and no numpy, which torch does not
    require.
    """
    python = empty_environment(tmp_path / "environment", without="numpy")
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-compile",
        "--find-links",
        str(wheels["torchbus-ddp"].parent),
    ]
    assert run(
        [*install, "torchbus-ddp"], env={"PYTHONPATH": None}, cwd=tmp_path, timeout_s=120
    ).ok()
    (tmp_path / "train.py").write_text(TRAIN)
    for strategy in ("ddp", "dp"):
        result = run(
            [python, "train.py", strategy],
            env={"PYTHONPATH": None, "OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
            timeout_s=120,
        )
        assert result.ok() and result.stdout == "[0, 1] 10000 True False\n"
        assert "loaders are not divided" not in result.stderr


LOOK = (SCRIPTS / "packaging_look.py").read_text()


def needed(folder: Path) -> set[str]:
    """The package itself, and what it declares of this repository, with what that declares."""
    folders = {project(one)["name"]: one for one in PLUGINS}
    found: set[str] = set()
    waiting = [project(folder)["name"]]
    while waiting:
        name = waiting.pop()
        if name in folders and name not in found:
            found.add(name)
            for line in project(folders[name]).get("dependencies", []):
                waiting.append(re.split(r"[<>=~! ;\[]", line)[0])
    return found


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(folder, id=folder.name, marks=[] if number % 12 == 0 else pytest.mark.slow)
        for number, folder in enumerate(PACKAGES)
    ],
)
def test_installed_beside_the_core_alone_it_is_discovered(folder, wheels, environment, tmp_path):
    names = {project(CORE)["name"], *needed(folder)}
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--target",
        str(tmp_path / "site"),
    ]
    assert run([*install, *(str(wheels[name]) for name in sorted(names))], cwd=tmp_path).ok()
    result = run(
        [environment, "-c", LOOK], env={"PYTHONPATH": str(tmp_path / "site")}, cwd=tmp_path
    )
    assert result.ok()
    told = json.loads(result.stdout)
    folders = [one for one in PACKAGES if project(one)["name"] in needed(folder)]
    assert told["found"] == {
        kind: {
            name: project(one)["name"]
            for one in folders
            for name in project(one).get("entry-points", {}).get(group, {})
        }
        for kind, group in GROUPS.items()
        if kind
        not in (
            "command",
            "testing",
            "service",
            "always",
            "default",
            "preset",
        )  # no plugins
    }
    assert told["imported"] == [] and told["made"] == sorted(told["found"]["plugin"])
    assert told["version"] == torchbus.__version__ and told["file"].startswith(str(tmp_path))
