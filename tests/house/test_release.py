"""`make.py release`: what it writes and refuses, and what it builds."""

from __future__ import annotations

import datetime
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from torchbus_testing.environments import empty_environment
from torchbus_testing.scripts import run

ROOT = Path(__file__).parents[2]
DAY = datetime.date(2026, 12, 24)
PATIENCE_S = 3000.0
LEFT_OUT = (".git", ".venv*", ".*_cache", "__pycache__", "dist", "zoo", "benchmarks")


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("release.tree")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of this checkout, with a repository of its own."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
    git(folder, "init", "-q")
    git(folder, "config", "user.name", "Somebody")
    git(folder, "config", "user.email", "somebody@example.org")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "Everything")
    return folder


def git(folder: Path, *words: str) -> str:
    return subprocess.check_output(["git", *words], cwd=folder, text=True)


def test_a_release_is_a_commit_and_a_tag(checkout: Path, tree: ModuleType) -> None:
    changes = (checkout / "CHANGELOG.md").read_text()
    assert f"## {tree.version(ROOT)} (unreleased)" in changes
    importlib.import_module("release.__main__").commit(checkout, "0.7.0", DAY)
    assert tree.version(checkout) == "0.7.0" and tree.date(checkout) == DAY
    declared = [(path / "pyproject.toml").read_text() for path in tree.packages(checkout)]
    pins = {pin for text in declared for pin in re.findall(r'"torchbus[\w-]*([<>=][^"]*)"', text)}
    assert pins == {">=0.7,<0.8"}
    assert (checkout / "CHANGELOG.md").read_text() == changes.replace(
        f"## {tree.version(ROOT)} (unreleased)", "## 0.7.0 (2026-12-24)"
    )
    citation = (checkout / "CITATION.cff").read_text()
    assert "version: 0.7.0\ndate-released: 2026-12-24\n" in citation
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "log", "-1", "--format=%s") == "Release 0.7.0\n"
    told = git(checkout, "tag", "-n3", "--list", "v0.7.0")
    assert told.startswith("v0.7.0") and "### Added" in told


REFUSED = {
    "0.2": "'0.2' is not a version: write three numbers, such as 0.2.0",
    "v0.2.0": "'v0.2.0' is not a version",
    "0.0.9": "0.0.9 is older than 0",
    "0.7.0": "CHANGELOG.md has no section '## 0.7.0 (unreleased)'",
}


@pytest.mark.parametrize("number", REFUSED)
def test_a_version_that_can_not_be_released(number: str, checkout: Path, tree: ModuleType) -> None:
    page = checkout / "CHANGELOG.md"
    if number == "0.7.0":
        page.write_text(page.read_text().replace("(unreleased)", "(2026-01-02)"))
        git(checkout, "commit", "-qam", "Released")
    with pytest.raises(tree.Refused) as refused:
        tree.write(checkout, number, DAY)
    assert str(refused.value).startswith(REFUSED[number])
    assert git(checkout, "status", "--porcelain") == ""


def test_changes_and_tags_that_are_there_are_refused(checkout: Path, tree: ModuleType) -> None:
    refuse = importlib.import_module("release.__main__").refuse_unclean
    git(checkout, "tag", "v0.7.0")
    with pytest.raises(tree.Refused, match=r"there is a tag v0\.7\.0 already"):
        refuse(checkout, "0.7.0")
    (checkout / "README.md").write_text("changed")
    with pytest.raises(tree.Refused, match=r"commit or stash these changes first:\n M README\.md"):
        refuse(checkout, "0.8.0")


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_dry_run_builds_everything_and_changes_nothing(checkout: Path, tmp_path: Path) -> None:
    """The files are equal in two builds, pass twine, install, and train. Then the extras of
    the README install from a folder with them.
    """
    command = [sys.executable, "-m", "release", "release", "0.7.0", "--dry-run"]
    head = git(checkout, "rev-parse", "HEAD")
    told = run([*command, "--to", str(tmp_path / "index")], cwd=checkout, timeout_s=PATIENCE_S)
    assert told.ok() and "all packages install together" in told.stdout
    assert git(checkout, "status", "--porcelain") == "" and git(checkout, "tag") == ""
    assert git(checkout, "rev-parse", "HEAD") == head
    files = sorted(path.name for path in (tmp_path / "index").iterdir())
    assert len(files) % 2 == 0 and all("-0.7.0" in name for name in files)
    install_as_the_readme_says(tmp_path)


def install_as_the_readme_says(tmp_path: Path) -> None:
    extras = re.findall(r"`(torchbus\[[\w,]+\])`", (ROOT / "README.md").read_text())
    assert len(extras) == 2
    for number, extra in enumerate(extras):
        folder = tmp_path / str(number)
        python = empty_environment(folder)
        index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index")}
        path = {"PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"}
        script = f"python -m pip install '{extra}' && torchbus plugins --check"
        done = run(
            ["bash", "-ec", script], env={**index, **path}, cwd=tmp_path, timeout_s=PATIENCE_S
        )
        assert done.ok() and "torchbus 0.7.0" in done.stdout
