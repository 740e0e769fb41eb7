"""`torchbus --help`, `--version`, `plugins` and commands of other packages, with packages made up
here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torchbus

SCRIPTS = Path(__file__).parent / "scripts"

ENTRY_POINTS = """
[torchbus]
tally = tally:Tally
broken = broken:Plugin

[torchbus.strategy]
tallied = tally:Tally

[torchbus.option]
tally_every = tally:Tally

[torchbus.logger]
lines = broken:Plugin

[torchbus.command]
tally = tally:count
ruined = broken:main
"""
TALLY = (SCRIPTS / "tally.py").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which one distribution is installed."""
    site = tmp_path_factory.mktemp("site")
    (site / "tally.py").write_text(TALLY)
    (site / "broken.py").write_text("import this_is_missing")
    info = site / "tally_pack-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tally-pack\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return site


CALLS = (SCRIPTS / "cli_calls.py").read_text()


def environ(site: Path) -> dict[str, str]:
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "COLUMNS": "120"}


@pytest.fixture(scope="module")
def said(site: Path) -> dict[str, tuple[int, str]]:
    """Exit status and output of each call, all made by one process."""
    calls = ["--help", "run --help", "plugins --help", "doctor --help", "plugins --json"]
    calls += ["plugins", "plugins --events"]
    command = [sys.executable, "-c", CALLS]
    done = subprocess.run(
        command,
        input=json.dumps([call.split() for call in calls]),
        env=environ(site),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    told = zip(calls, json.loads(done.stdout), strict=True)
    return {call: (status, output) for call, (status, output, _) in told}


def test_help_lists_the_commands_of_all_packages(said: dict[str, tuple[int, str]]) -> None:
    lines = said["--help"][1].splitlines()
    summaries = dict(
        line.split(maxsplit=1) for line in lines if line.startswith("  ") and line[2] != " "
    )
    assert list(summaries)[:3] == ["run", "plugins", "doctor"]
    assert summaries["tally"] == "Count the words."
    assert summaries["ruined"].startswith("plugin ruined (tally-pack 1.2) could not be imported:")


@pytest.mark.parametrize("command", ["run", "plugins", "doctor"])
def test_each_command_is_explained_with_examples(
    said: dict[str, tuple[int, str]], command: str
) -> None:
    status, output = said[f"{command} --help"]
    assert status == 0
    assert output.startswith(f"usage: torchbus {command}")
    assert output.split("examples:\n")[1].count(f"torchbus {command}") >= 2


def test_plugins_as_json(said: dict[str, tuple[int, str]]) -> None:
    status, output = said["plugins --json"]
    found = {plugin["name"]: plugin for plugin in json.loads(output)}
    assert found["tally"] == {
        "name": "tally",
        "distribution": "tally-pack",
        "version": "1.2",
        "strategies": ["tallied"],
        "loggers": [],
        "options": ["tally_every"],
        "verbs": [],
        "events": ["launch", "after_backward", "session_end"],
        "error": None,
    }
    assert found["broken"]["loggers"] == ["lines"]
    assert "No module named 'this_is_missing'" in found["broken"]["error"]
    assert status == 0


@pytest.mark.parametrize(
    ("call", "title", "begin"),
    [
        ("plugins", "PROVIDES", "strategy: tallied;"),
        ("plugins --events", "LISTENS TO", "launch, after_backward"),
    ],
)
def test_plugins_as_a_table(
    said: dict[str, tuple[int, str]], call: str, title: str, begin: str
) -> None:
    lines = said[call][1].splitlines()
    columns = [lines[0].index(title) for title in ("NAME", "PACKAGE", title)]
    row = next(line for line in lines if line.startswith("tally "))
    cells = [
        row[start:end].strip() for start, end in zip(columns, [*columns[1:], None], strict=True)
    ]
    assert cells[:2] == ["tally", "tally-pack 1.2"]
    assert cells[2].startswith(begin)
    assert max(map(len, lines)) <= 120


def test_a_command_of_another_package_gets_its_words(site: Path) -> None:
    command = [sys.executable, "-m", "torchbus", "tally", "a", "--b", "c=d"]
    done = subprocess.run(command, env=environ(site), capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (3, "['a', '--b', 'c=d']\n", "")


def test_the_console_script_is_the_same_command() -> None:
    script = Path(sys.executable).with_name("torchbus")
    if not script.exists():
        pytest.skip("torchbus is not installed in this environment")
    assert (
        subprocess.check_output([script, "--version"], text=True, timeout=100)
        == f"torchbus {torchbus.__version__}\n"
    )
