"""``make.py versions``: a loop on two ranks against one process, with each torch of the window."""

from __future__ import annotations

import datetime
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from release.environment import ROOT, Environment, say

WINDOW = ("2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.13.0", "newest")
LOOPS = {"ddp": 1e-6, "accumulate": 1e-6, "bf16": 1e-2}
"""The loops of ``tests/two_ranks.py``, and how far two ranks may be from one process."""
PAGE = ROOT / "benchmarks" / "results" / "versions.md"
ROW = re.compile(r"^\| (\d+\.\d+\.\d+) \| (\d+\.\d+)\..*\n", re.M)  # torch, Python's minor


def run(torches: Sequence[str]) -> int:
    """One torch at a time: install it, run, write its row, and remove it."""
    failed = [torch for torch in torches or WINDOW if not _tried(Environment("versions", torch))]
    say(f"failed: {', '.join(failed)}" if failed else "all agree with one process")
    return int(bool(failed))


def _tried(environment: Environment) -> bool:
    try:
        environment.set_up()
        found = {name: _apart(environment.python, name) for name in LOOPS}
    except (subprocess.SubprocessError, ValueError) as error:
        say(f"torch {environment.torch}: {error}")
        return False
    finally:
        shutil.rmtree(environment.folder, ignore_errors=True)
    (version,) = {torch.partition("+")[0] for torch, _ in found.values()}
    PAGE.write_text(with_row(PAGE.read_text("utf-8"), row(version, found)), "utf-8")
    return all(apart <= LOOPS[name] for name, (_, apart) in found.items())


def _apart(python: Path, name: str) -> tuple[str, float]:
    command: list[str | Path] = [python, ROOT / "tests" / "two_ranks.py", name]
    done = subprocess.run(command, check=True, timeout=300, stdout=subprocess.PIPE, text=True)
    told = json.loads(done.stdout.splitlines()[-1])
    return told["torch"], told["apart"]


def row(version: str, found: dict[str, tuple[str, float]]) -> str:
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True)
    apart = " | ".join(f"{found[name][1]:.0e}" for name in LOOPS)
    day = datetime.date.today()
    return f"| {version} | {platform.python_version()} | {day} | {commit.strip()} | {apart} |\n"


def with_row(page: str, line: str) -> str:
    """The page with this row in its place: by torch, then by Python."""
    rows = {one.groups(): one[0] for one in ROW.finditer(page + line)}
    ordered = sorted(rows, key=lambda one: [int(part) for part in ".".join(one).split(".")])
    before, rule, rest = page.partition("|---|---|---|---|---|---|---|\n")
    return before + rule + "".join(rows[one] for one in ordered) + ROW.sub("", rest)
