"""The shell example of the README runs as it is written, in an empty folder. What the README and the
packages promise about versions is what the table of versions says.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from release import tree

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
EXAMPLE = re.compile(
    r"^```sh\n(cat > train\.py <<'EOF'\n.*?)^```\n\n```text\n(.*?)^```", re.M | re.S
)
PAGE = (ROOT / "benchmarks/results/versions.md").read_text(encoding="utf-8")
COMPATIBILITY = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+\.\d+)\.\d+ \| (\d+\.\d+)\.\d+ \|", PAGE, re.M)
TORCHES, PYTHONS = ({*column} for column in zip(*ROWS, strict=True))
PROJECTS = [folder / "pyproject.toml" for folder in tree.packages(ROOT)]


@pytest.mark.timeout(300)
def test_the_script_of_the_readme_is_proved(tmp_path):
    commands, expected = EXAMPLE.search(README.read_text(encoding="utf-8")).groups()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-e"],
        input=commands,
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    pattern = re.escape(expected.strip()).replace(r"\.\.\.", r"\de-\d\d")
    assert re.fullmatch(pattern, result.stdout.strip()), result.stdout
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"]


def test_the_commands_of_the_readme_set_up_and_try_a_checkout():
    """CI calls the second."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README.read_text("utf-8"), re.M | re.S)
    assert blocks[:2] == ["python3 make.py demo\n", "python3 make.py test\n"]
    assert f"exec {blocks[1].strip()} " in (ROOT / ".ci/run").read_text("utf-8")


def declared(pattern: str) -> set[str]:
    return {one for path in PROJECTS for one in re.findall(pattern, path.read_text("utf-8"))}


def without_row(what: str) -> set[str]:
    """What the page says to be declared and not tried."""
    (line,) = re.findall(r"^Declared, but without a row: (.+)\.$", PAGE, re.M)
    return {one for part in re.findall(rf"{what} ([\d., ]+\d)", line) for one in part.split(", ")}


def test_the_readme_names_the_versions_of_the_table():
    ordered = sorted(TORCHES, key=tree.numbers)
    pythons = sorted(PYTHONS, key=tree.numbers)
    expected = f"Tried with torch {ordered[0]} to {ordered[-1]}, on Python {', '.join(pythons)}:"
    assert expected in README.read_text("utf-8")


def test_each_minor_of_the_window_has_a_row():
    numbers = sorted(tree.numbers(one) for one in TORCHES)
    first, last = numbers[0][1], numbers[-1][1]
    assert numbers == [[2, minor] for minor in range(first, last + 1)]


def test_a_declared_bound_has_a_row():
    bounds = declared(r'"torch>=(\d+\.\d+)')
    assert {"2.6", "2.13"} <= bounds
    assert bounds - TORCHES == without_row("torch")
    assert min(bounds, key=tree.numbers) == min(TORCHES, key=tree.numbers)


def test_a_declared_python_has_a_row():
    bounds = declared(r'requires-python = ">=(\d+\.\d+)"')
    listed = declared(r'"Programming Language :: Python :: (3\.\d+)"')
    assert min(listed, key=tree.numbers) in bounds
    assert (bounds | listed) - PYTHONS == without_row("Python")


def test_the_page_says_the_oldest_that_is_declared():
    (oldest,) = re.findall(
        r"^\| 0\.\d+ \| 0\.\d+ \| (\d+\.\d+) or later .+\| (3\.\d+) or later", COMPATIBILITY, re.M
    )
    bounds = declared(r'"torch>=(\d+\.\d+)'), declared(r'requires-python = ">=(\d+\.\d+)"')
    assert oldest == tuple(min(found, key=tree.numbers) for found in bounds)
