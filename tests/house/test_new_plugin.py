"""What `torchbus new-plugin` writes installs, and passes all its checks as it is."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from torchbus_testing.scripts import run

NAME = "first-try"
KINDS = ("listener", "logger", "strategy")
PATIENCE_S = 900.0


def new(tmp_path: Path, kind: str) -> Path:
    """The folder of a new package."""
    command = [sys.executable, "-m", "torchbus", "new-plugin", NAME, "--kind", kind]
    told = run(command, cwd=tmp_path)
    assert told.ok() and told.stdout.startswith("written: torchbus-first-try\n")
    return tmp_path / "torchbus-first-try"


@pytest.fixture
def written(tmp_path, request) -> Path:
    """The folder of a new package, which is installed in ``site`` beside it."""
    folder = new(tmp_path, request.param)
    words = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--no-compile"]
    target = ["--target", str(tmp_path / "site"), str(folder)]
    install = [sys.executable, "-m", "pip", "install", *words, *target]
    assert run(install, cwd=tmp_path, timeout_s=200).ok()
    return folder


def check(folder: Path, *words: str) -> str:
    """Run a Python module in the package's folder, where the package is installed."""
    path = os.pathsep.join([str(folder.parent / "site"), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "PYTEST_ADDOPTS": None}
    done = run([sys.executable, "-m", *words], cwd=folder, env=environment, timeout_s=PATIENCE_S)
    assert done.ok(), done.stdout + done.stderr
    return done.stdout


def kit(folder: Path) -> list[str]:
    """The words of the conformance kit, as the package's README says."""
    lines = (folder / "README.md").read_text().splitlines()
    return next(line.split() for line in lines if line.startswith("pytest --torchbus"))


def is_clean(folder: Path) -> None:
    check(folder, "ruff", "check", ".")
    check(folder, "ruff", "format", "--check", ".")


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_declares_what_it_imports(tmp_path, kind):
    folder = new(tmp_path, kind)
    sources = "".join(path.read_text() for path in folder.rglob("*.py"))
    imported = {
        one.replace("_", "-") for one in re.findall(r"^from (torchbus_?\w*)", sources, re.M)
    }
    declared = {*re.findall(r'"(torchbus[\w-]*)', (folder / "pyproject.toml").read_text())}
    assert {"torchbus", "torchbus-testing"} <= imported <= declared


def test_a_new_package_is_clean(tmp_path):
    folder = new(tmp_path, "listener")
    is_clean(folder)
    assert (folder / "pyproject.toml").is_file() and list((folder / "tests").glob("test_*.py"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("written", ["listener"], indirect=True)
def test_a_listener_passes_its_tests(written):
    assert "3 passed" in check(written, "pytest", "-p", "no:cacheprovider")
    assert "first_try" in check(written, "torchbus", "plugins")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("written", KINDS, indirect=True)
def test_each_kind_passes_everything(written):
    is_clean(written)
    assert "Success" in check(written, "mypy")
    assert " passed" in check(written, "pytest")
    told = check(written, *kit(written), "--torchbus-ranks", "2", "-q")
    assert " passed" in told and "failed" not in told


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("written", ["listener"], indirect=True)
def test_the_kit_reaches_what_the_author_writes(written):
    """With the options of the README: by its defaults the plugin would do nothing."""
    for path in written.parent.glob("site/*/plugin.py"):
        path.write_text(path.read_text().replace("print(f", "raise ArithmeticError(f"))
    with pytest.raises(AssertionError, match="ArithmeticError"):
        check(written, *kit(written), "-k", "one-process and 2", "-q")


BAD = {
    "Bad Name": "'Bad Name' is not a valid plugin name: use small letters, digits and '-', such as",
    "class": "'class' is not a valid plugin name",
    "ddp": "the name 'ddp' is taken: torchbus-ddp 0",
    "torchbus-wandb": "the name 'torchbus-wandb' is taken: torchbus-wandb 0",
    "precision": "the name 'precision' is taken: torchbus-amp 0",
    "there": "torchbus-there exists already, and is not empty: name another folder",
}


@pytest.mark.parametrize("name", BAD)
def test_what_it_can_not_write_is_an_error(name, tmp_path, capsys, monkeypatch):
    from torchbus_cli.main import main

    (tmp_path / "torchbus-there").mkdir()
    (tmp_path / "torchbus-there" / "mine.py").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["new-plugin", name]) == 2
    assert capsys.readouterr().err.startswith(f"torchbus new-plugin: {BAD[name]}")
    assert [path.name for path in tmp_path.rglob("*")] == ["torchbus-there", "mine.py"]
