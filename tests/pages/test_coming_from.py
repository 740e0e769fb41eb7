"""Those who come from other ways: both sides of each page train to equal numbers."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from snippets import find

from torchbus_testing.forking import fork_script

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "coming-from").glob("*.md"))
NUMBERS = re.compile(r"^weight (\S+), bias (\S+)$", re.M)
CELL = re.compile(r"\[.+\]\((https://[^)\s]+|\.\./[^)\s]+|#what-torchbus-does-not-have)\)$")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_both_sides_train_to_equal_numbers(page: Path, tmp_path: Path) -> None:
    theirs, ours = find(page)
    assert "torchbus" not in theirs.code and "with session(" in ours.code
    shown = []
    for side in (theirs, ours):
        code = side.code.replace("num_processes=2", f'num_processes=2, use_port="{free_port()}"')
        done = fork_script(code, cwd=tmp_path / str(side.line), timeout_s=400)
        assert done.status == 0, done.stdout + done.stderr
        shown += NUMBERS.findall(done.stdout)
    assert len(shown) == 2 and shown[0] == shown[1]
    assert set(NUMBERS.findall(page.read_text("utf-8"))) == {shown[0]}


def free_port() -> int:
    """A port for Accelerate, which takes the same one in all jobs of a host."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_pages_show_equal_numbers() -> None:
    assert len(PAGES) == 6
    for page in PAGES:
        shown = NUMBERS.findall(page.read_text("utf-8"))
        assert len(shown) == 2 and len({*shown}) == 1, page.name


def test_each_cell_of_the_comparison_leads_to_what_it_says() -> None:
    """Ours to a test or a reason, theirs to their page."""
    text = (ROOT / "docs" / "comparison.md").read_text("utf-8")
    rows = [line[2:-2].split(" | ") for line in text.splitlines() if re.match(r"\| [^|-]", line)]
    assert len(rows) > 25
    for name, ours, *theirs in rows:
        found = CELL.search(ours)
        assert found and not found[1].startswith("https:"), name
        assert found[1].startswith("../") or ours.startswith("no ["), name
        assert len(theirs) == 5, name
        for cell in theirs:
            link = CELL.search(cell)
            assert cell == "—" or (link and link[1].startswith("https:")), f"{name}: {cell}"
    reasons = text.partition("## What torchbus does not have")[2]
    assert text.count("](#what-torchbus-does-not-have)") == len(
        re.findall(r"^\d\. ", reasons, re.M)
    )
