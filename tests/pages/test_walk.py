"""A newcomer's walk: an empty environment and folder, and only what the pages say."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from snippets import find, matches

from torchbus_testing.environments import empty_environment
from torchbus_testing.scripts import run

pytest.importorskip("selenium")
from selenium.webdriver.common.by import By
from site_browser import BROWSER, DRIVER, browser, served

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
PATIENCE_S = 300.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="chromium and its driver are missing"),
]


class Newcomer:
    """Somebody with an environment without torchbus, and an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.python = Path(empty_environment(folder / "environment"))
        self.desk = folder / "desk"
        self.desk.mkdir()

    def types(self, line: str) -> str:
        """Run a command in the folder, and return what it prints."""
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        words = shlex.split(line, comments=True)
        words[0] = str(self.python) if words[0] == "python" else words[0]
        return (
            run(words, cwd=self.desk, env={"PATH": path, "PYTHONPATH": None}, timeout_s=PATIENCE_S)
            .ok()
            .stdout
        )

    def installs(self, line: str, where: Path) -> None:
        """Install as a line says, without a network."""
        _, command, *packages = shlex.split(line.replace("\\\n", " "))
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--quiet", command]
        offline = ["--no-index", "--no-build-isolation"]
        run([*pip, *offline, *packages], cwd=where, timeout_s=PATIENCE_S).ok()

    def follows(self, page: str, number: int, name: str = "train.py") -> None:
        """Save a page's block of Python, run it, and compare with what the page shows."""
        snippet = find(DOCS / page)[number]
        (self.desk / name).write_text(snippet.code)
        printed = self.types(f"python {name}")
        assert matches(printed, snippet.expected or "..."), printed


def test_everything_works_as_written(tmp_path: Path) -> None:
    install, commands = SHELL.findall((DOCS / "getting-started.md").read_text("utf-8"))
    newcomer = Newcomer(tmp_path)
    newcomer.installs(install, ROOT)
    newcomer.follows("getting-started.md", 1, "after.py")
    newcomer.follows("getting-started.md", 0)
    for line in commands.splitlines():
        assert newcomer.types(line)

    newcomer.installs("pip install ./plugins/accumulate", ROOT)
    newcomer.follows("coming-from/ddp.md", 1)
    newcomer.follows("how-to/accumulate.md", 0)

    written = newcomer.types("torchbus new-plugin first-try")
    assert "torchbus-first-try" in written
    newcomer.installs("pip install ./torchbus-first-try", newcomer.desk)
    assert "first_try" in newcomer.types("torchbus plugins")

    newcomer.follows("getting-started.md", 0)
    newcomer.types("torchbus run --devices 2 -o batch=global --logger local train.py")
    assert "1 run" in newcomer.types("torchbus report last")
    with served(newcomer.desk) as address, browser() as chromium:
        chromium.get(f"{address}/report.html")
        assert chromium.find_elements(By.CSS_SELECTOR, ".chart")
        assert chromium.get_screenshot_as_file(str(tmp_path / "report.png"))
