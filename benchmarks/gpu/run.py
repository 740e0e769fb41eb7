"""``python make.py gpu``: the tests marked ``gpu``, and the kit, with the torch of this Python.

Nothing is installed, and torch is not downloaded: the packages of the repository are put before
this Python's own, with the entry points that their ``pyproject.toml`` name.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from release import tree  # noqa: E402  (make.py runs this file by its path)

SITE = ROOT / ".gpu-site"
NAME = re.compile(r'^name = "(.+)"$', re.M)
LINE = re.compile(r'^"?([\w.+-]+)"? = "(.+)"$')


def entry_points(text: str) -> str:
    """The sections ``[project.entry-points.NAME]`` in the format of an installed package."""
    told = []
    for section in re.split(r"^\[", text, flags=re.M):
        head, _, body = section.partition("]\n")
        if head.startswith("project.entry-points."):
            name = head.removeprefix("project.entry-points.").strip('"')
            lines = [LINE.match(line) for line in body.splitlines()]
            told += [f"[{name}]", *(f"{one[1]} = {one[2]}" for one in lines if one)]
    return "\n".join(told) + "\n"


def describe(package: Path, site: Path = SITE) -> None:
    """Write down what Python would know of the package if it were installed."""
    text = (package / "pyproject.toml").read_text("utf-8")
    found = NAME.search(text)
    assert found is not None, package
    name, version = found[1], tree.version(ROOT)
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8"
    )
    (folder / "entry_points.txt").write_text(entry_points(text), "utf-8")


def main() -> int:
    if importlib.util.find_spec("torch") is None:
        sys.exit(f"{sys.executable} has no torch: run make.py gpu with a Python that has one")
    packages = tree.packages(ROOT)
    for package in packages:
        describe(package)
    path = [str(SITE), *(str(package / "src") for package in packages)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    if importlib.util.find_spec("pluggy") is None:
        command = [sys.executable, "-m", "pip", "install", "--target", str(SITE), "pluggy"]
        subprocess.run(command, check=True)
    status = 0
    if "--sim" not in sys.argv and importlib.util.find_spec("pytest") is not None:
        files = [
            path
            for folder in ("core", "plugins", "contrib", "tests")
            for path in sorted((ROOT / folder).rglob("test_*.py"))
            if "mark.gpu" in path.read_text("utf-8")
        ]
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider"]
        options = ["-p", "no:benchmark", "-o", "addopts=--import-mode=importlib"]
        status = subprocess.call([*command, *options, *files], cwd=ROOT, env=environment)
    kit = [sys.executable, str(ROOT / "benchmarks/gpu/kit.py"), *sys.argv[1:]]
    return subprocess.call(kit, env=environment) or status


if __name__ == "__main__":
    sys.exit(main())
