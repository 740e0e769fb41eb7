"""What ``make.py`` would set up and run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from release import tree
from torchbus_testing.scripts import run

ROOT = Path(__file__).resolve().parents[2]
GPU_RUN = ROOT / "benchmarks/gpu/run.py"
NO_OTHER_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("make", ROOT / "make.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "make", made)
    spec.loader.exec_module(made)
    return made


def test_another_torch_has_an_environment_of_its_own(make: ModuleType) -> None:
    usual, other = make.Environment("test"), make.Environment("test", "2.6.0")
    assert (usual.folder.name, other.folder.name) == (".venv", ".venv-torch-2.6.0")
    assert usual.fingerprint() != other.fingerprint()
    ignored = subprocess.run(["git", "check-ignore", "-q", other.folder], cwd=ROOT)
    assert ignored.returncode in (0, 128)  # 128: no git, as in an unpacked source


@pytest.mark.parametrize(
    ("torch", "line"),
    [(None, "torch==2.13.0"), ("2.6.0", "torch==2.6.0"), ("newest", "torch")],
)
def test_only_torch_differs(make: ModuleType, torch: str | None, line: str) -> None:
    lines = make.Environment("test", torch).requirements().splitlines()
    assert [one for one in lines if one.startswith("torch") and one[5:6] in ("", "=")] == [line]
    assert {"pluggy==1.7.0", "pytest==9.2.0"} < {*lines}
    rest = make.Environment("test").requirements().splitlines()
    for_newer = {one for one in rest if "# torch>=" in one} if torch == "2.6.0" else set()
    differ = {line, "torch==2.13.0"} if torch else set()
    assert {*lines} ^ {*rest} == differ | for_newer


def test_a_row_of_a_version_has_one_place(make: ModuleType) -> None:
    page = "before\n|---|---|---|---|---|---|---|\nafter\n"
    given = ("2.10.0 | 3.9.1", "2.10.0 | 3.10.2", "2.9.1 | 3.9.1", "2.13.0 | 3.9.1")
    for number, one in enumerate((*given, "2.9.1 | 3.9.2")):
        page = make.versions.with_row(page, f"| {one} | {number} |\n")
    rows = "| 2.9.1 | 3.9.2 | 4 |\n| 2.10.0 | 3.9.1 | 0 |\n"
    rows += "| 2.10.0 | 3.10.2 | 1 |\n| 2.13.0 | 3.9.1 | 3 |\n"
    assert page == f"before\n|---|---|---|---|---|---|---|\n{rows}after\n"


def test_the_site_has_an_environment_without_torch(make: ModuleType) -> None:
    environment = make.Environment("docs")
    assert environment.folder.name == ".venv-docs" and environment.packages == []
    lines = environment.requirements().splitlines()
    assert any(line.startswith("zensical==") for line in lines)
    assert not any(line.startswith("torch") for line in lines)
    assert all("==" in line for line in lines if not line.startswith("#"))


def test_the_package_of_a_path(make: ModuleType) -> None:
    assert make.package_of(ROOT / "plugins/ddp/src/torchbus_ddp/plugin.py") == ROOT / "plugins/ddp"
    assert make.package_of(ROOT / "core") == ROOT / "core"
    with pytest.raises(SystemExit, match="docs belongs to no package: name a folder such as plug"):
        make.package_of(ROOT / "docs")


def test_another_torch_is_for_tests_only(make: ModuleType, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["make.py", "demo", "--torch", "2.6.0"])
    with pytest.raises(SystemExit):
        make.main()
    assert "--torch belongs to test" in capsys.readouterr().err


def test_fast_tests_come_first_and_those_without_time_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import time\n"
        "def test_slow():\n    time.sleep(1.0)\n"
        "def test_other():\n    time.sleep(0.4)\n"
        "def test_fast():\n    pass\n"
    )

    def run() -> str:
        words = ["-p", "quick", "--seconds=0.7", "-v", "-c", "/dev/null", f"--rootdir={tmp_path}"]
        command = [sys.executable, "-m", "pytest", *words, str(tmp_path)]
        environment = {"PYTHONPATH": str(ROOT / "tests"), "PATH": "", **NO_OTHER_PLUGINS}
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env=environment
        )
        return done.stdout

    first, second = run(), run()
    assert "test_slow PASSED" in first and "test_fast SKIPPED" in first
    assert second.index("test_fast PASSED") < second.index("test_slow SKIPPED")


@pytest.fixture(scope="module")
def gpu_run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_run", GPU_RUN)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torchbus_entries(one: Distribution) -> set[tuple[str, str, str]]:
    return {
        (entry.group, entry.name, entry.value)
        for entry in one.entry_points
        if entry.group.startswith("torchbus")
    }


@pytest.mark.parametrize("package", tree.packages(ROOT), ids=lambda path: path.name)
def test_make_gpu_describes_a_package_as_pip_does(
    gpu_run: ModuleType, package: Path, tmp_path: Path
) -> None:
    """It installs nothing, and Python knows each package as if it were installed."""
    gpu_run.describe(package, tmp_path)
    described = PathDistribution(next(tmp_path.glob("*.dist-info")))
    installed = distribution(described.metadata["Name"])
    assert described.version == installed.version
    assert torchbus_entries(described) == torchbus_entries(installed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_jobs_of_nccl_end_well_over_gloo() -> None:
    run([sys.executable, str(ROOT / "benchmarks/gpu/nccl.py"), "--gloo"], timeout_s=590).ok()
