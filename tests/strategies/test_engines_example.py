"""One script under every engine, compared with one process by the script that makes the table."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from torchbus_testing.scripts import run

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "examples/engines/table.py"
PAGE = ROOT / "benchmarks/results/README.md"
ENGINES = runpy.run_path(str(TABLE))["ENGINES"]
pytestmark = pytest.mark.timeout(600)


def rows(*engines: str) -> list[list[str]]:
    """The cells of the table, a list for each engine."""
    done = run([sys.executable, str(TABLE), *engines], timeout_s=580).ok()
    lines = done.stdout.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.slow
def test_each_engine_gives_the_parameters_of_one_process() -> None:
    alone, *others = rows()
    assert alone[:2] == ["one process", "1"]
    assert [name for name, *_ in others] == list(ENGINES)
    assert all(float(distance) < 1e-5 for _, _, distance, _ in others)
    assert all(float(megabytes) < float(alone[3]) for *_, megabytes in others)


def test_an_unknown_engine_is_refused() -> None:
    refused = run([sys.executable, str(TABLE), "horse"], timeout_s=60)
    assert refused.status == 2 and "unknown: horse; there are ddp, ddp_sharded" in refused.stderr


def test_the_page_shows_every_engine() -> None:
    page = PAGE.read_text("utf-8")
    assert all(f"\n| {name} | " in page for name in ENGINES)
