"""The project from A to Z: each command of the page prints what the page shows."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from snippets import find, matches

from torchbus_testing.scripts import run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "getting-started" / "project.md"
STEP = re.compile(r"^```sh\n(.*?)^```\n\n```text\n(.*?)^```", re.M | re.S)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(find(PAGE)[0].code)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    steps = STEP.findall(PAGE.read_text("utf-8"))
    assert len(steps) == 6
    for commands, expected in steps:
        done = run(["bash", "-ec", commands], cwd=tmp_path, env={"PATH": path}, timeout_s=120.0)
        assert done.ok() and matches(done.stdout, expected), f"{commands}{done.stdout}"
