"""Each package is a wheel that installs beside the core alone, is discovered by name, and says the same as the others."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from torchbus._bus.catalog import DISTRIBUTIONS
from torchbus.testing import empty_environment, run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core"
PLUGINS = sorted(path.parent for folder in ("plugins", "contrib") for path in (ROOT / folder).glob("*/pyproject.toml"))
PACKAGES = [CORE, *PLUGINS]
GROUPS = {"plugin": "torchbus"} | {kind: f"torchbus.{kind}" for kind in ("strategy", "logger", "option", "verb", "companion")}


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def module(folder: Path) -> str:
    return project(folder)["name"].replace("-", "_")


def test_the_root_is_the_core():
    """``pip install .`` at the root gives the core."""
    assert project(ROOT) == project(CORE)


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_what_each_package_has(folder):
    ours, core = project(folder), project(CORE)
    package = folder / "src" / module(folder)
    assert (folder / "README.md").read_text().startswith(f"# {ours['name']}")
    assert (package / "py.typed").exists()
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()  # hatchling puts it into the wheel
    assert f'__version__ = "{ours["version"]}"' in (package / "__init__.py").read_text()
    assert list((folder / "tests").glob("test_*.py"))
    assert {ours[key] == core[key] for key in ("version", "license", "requires-python")} == {True}
    assert folder == CORE or f"torchbus=={core['version']}" in ours["dependencies"]


def test_the_extras_name_every_plugin():
    core = project(CORE)
    expected = {module(folder).removeprefix("torchbus_"): [f"{project(folder)['name']}=={core['version']}"] for folder in PLUGINS}
    every = [line for lines in expected.values() for line in lines]
    assert {name: lines for name, lines in core["optional-dependencies"].items() if name != "all"} == expected
    assert sorted(core["optional-dependencies"]["all"]) == sorted(every)


def test_the_catalog_says_what_the_packages_contribute():
    groups = GROUPS | {"command": "torchbus.command"}
    told: dict[str, dict[str, str]] = {kind: {} for kind in groups}
    for folder in PLUGINS:
        entry_points = project(folder).get("entry-points", {})
        assert set(entry_points) <= set(groups.values()), folder
        for kind, group in groups.items():
            told[kind] |= dict.fromkeys(entry_points.get(group, {}), project(folder)["name"])
    assert told == DISTRIBUTIONS


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """A wheel of each package, and of the root as "root", by name of the distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    assert run([*build, "--wheel-dir", str(folder), *map(str, PACKAGES)], cwd=ROOT, timeout_s=200).ok()
    assert run([*build, "--wheel-dir", str(folder / "root"), str(ROOT)], cwd=ROOT).ok()
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
        package = folder / "src" / module(folder)
        sources = {str(path.relative_to(package.parent)) for path in package.rglob("*") if path.suffix == ".py" or path.name == "py.typed"}
        for name in (project(folder)["name"], *(["root"] if folder == CORE else [])):
            names = zipfile.ZipFile(wheels[name]).namelist()
            assert {file for file in names if ".dist-info/" not in file} == sources
            assert any(file.endswith(".dist-info/licenses/LICENSE") for file in names)


TRAIN = """
import sys
import torch
from torch.utils.data import DataLoader
from torchbus import session

if __name__ == "__main__":
    torch.manual_seed(0)
    with session(strategy=sys.argv[1], devices=2, accelerator="cpu", launch="fork") as s:
        model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        data = torch.randn(20, 4)
        for _ in range(2):
            for x in DataLoader(data, batch_size=4, shuffle=True):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        told = s.all_gather_object([s.rank, "x" * 10_000 * s.rank])
        weights = s.all_gather(model[0].weight.detach())
        print([rank for rank, _ in told], len(told[1][1]), bool((weights[0] == weights[1]).all()), "numpy" in sys.modules)
"""


@pytest.mark.timeout(300)
def test_ddp_brings_what_it_trains_with_and_needs_no_numpy(wheels, tmp_path):
    """As pip resolves it, into an environment that has torch and no numpy, which torch does not require."""
    python = empty_environment(tmp_path / "environment", without="numpy")
    install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-compile", "--find-links", str(wheels["torchbus-ddp"].parent)]
    assert run([*install, "torchbus-ddp"], env={"PYTHONPATH": None}, cwd=tmp_path, timeout_s=120).ok()
    (tmp_path / "train.py").write_text(TRAIN)
    for strategy in ("ddp", "dp"):
        result = run([python, "train.py", strategy], env={"PYTHONPATH": None, "OMP_NUM_THREADS": "1"}, cwd=tmp_path, timeout_s=120)
        assert result.ok() and result.stdout == "[0, 1] 10000 True False\n"
        assert "loaders are not divided" not in result.stderr


LOOK = """
import json, sys
import torchbus
from torchbus import session
from torchbus._bus import discovery
found = {kind: {name: entry.dist.name for name, entry in discovery.installed(kind).items()} for kind in discovery.KINDS}
imported = sorted(name for name in sys.modules if name.startswith("torchbus_"))
made = []
for name in discovery.installed("plugin"):
    with session(name, strategy=None) as s:
        made += [plugin for plugin, _ in s._context.bus.plugins() if plugin == name]
print(json.dumps({"found": found, "imported": imported, "made": made, "version": torchbus.__version__, "file": torchbus.__file__}))
"""


@pytest.mark.parametrize(
    "folder", [pytest.param(folder, id=folder.name, marks=[] if number % 5 == 0 else pytest.mark.slow) for number, folder in enumerate(PACKAGES)]
)
def test_installed_beside_the_core_alone_it_is_discovered(folder, wheels, environment, tmp_path):
    names = {project(CORE)["name"], project(folder)["name"]}
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(tmp_path / "site")]
    assert run([*install, *(str(wheels[name]) for name in sorted(names))], cwd=tmp_path).ok()
    result = run([environment, "-c", LOOK], env={"PYTHONPATH": str(tmp_path / "site")}, cwd=tmp_path)
    assert result.ok()
    told = json.loads(result.stdout)
    entry_points = project(folder).get("entry-points", {})
    assert told["found"] == {kind: dict.fromkeys(entry_points.get(group, {}), project(folder)["name"]) for kind, group in GROUPS.items()}
    assert told["imported"] == [] and told["made"] == sorted(entry_points.get("torchbus", {}))
    assert told["version"] == project(CORE)["version"] and told["file"].startswith(str(tmp_path))
