"""The shell example of the README runs as it is written, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
EXAMPLE = re.compile(
    r"^```sh\n(cat > train\.py <<'EOF'\n.*?)^```\n\n```text\n(.*?)^```", re.M | re.S
)


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
