"""Builds wheel and sdist of every package. The same sources give the same bytes."""

from __future__ import annotations

import calendar
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from release import tree

AT_ONCE = 2
NOT_COPIED = (".git", ".venv*", "*_cache", "__pycache__", "dist", "build", "*.egg-info", "tests")


def build_twice(root: Path, to: Path) -> list[Path]:
    """Build in two copies of the checkout, at two places; return the files, which must be equal."""
    with tempfile.TemporaryDirectory() as scratch:
        first, second = Path(scratch, "one"), Path(scratch, "another/place")
        for folder in (first, second):
            copy(root, folder)
            build(folder, folder / "dist")
        ours, theirs = digests(first / "dist"), digests(second / "dist")
        different = [name for name in sorted(ours | theirs) if ours.get(name) != theirs.get(name)]
        if different:
            raise tree.Refused(f"two builds of the same sources differ in {', '.join(different)}")
        to.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(first / "dist" / name, to)) for name in sorted(ours)]


def copy(root: Path, to: Path) -> None:
    """Copy what packages are built from."""
    shutil.copytree(root, to, ignore=shutil.ignore_patterns(*NOT_COPIED))


def build(root: Path, to: Path) -> None:
    """Build the sdist of each package, and from the unpacked sdist its wheel."""
    to.mkdir(parents=True)
    epoch = str(calendar.timegm(tree.date(root).timetuple()))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda folder: _build(folder, to, epoch), tree.packages(root)))


def _build(folder: Path, to: Path, epoch: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        _hatchling("sdist", folder, Path(scratch), epoch)
        [sdist] = Path(scratch).glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, filter="data")
        _hatchling("wheel", Path(scratch, sdist.name.removesuffix(".tar.gz")), to, epoch)
        shutil.copy(sdist, to)


def _hatchling(target: str, folder: Path, to: Path, epoch: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(to)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise tree.Refused(f"{target} of {folder} can't be built:\n{done.stdout}{done.stderr}")


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file of a folder, by name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
