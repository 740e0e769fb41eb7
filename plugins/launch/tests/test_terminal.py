"""What the job writes to the terminal is fit to be shown, and comes from one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import torchbus_launch
from torchbus_launch.children import Child, error_file
from torchbus_launch.hang import report
from torchbus_launch.rank_position import RankPosition
from torchbus_launch.terminal import say

SECRET = "s3cr3t-" + "0004"
FOLDER = Path(torchbus_launch.__file__).parent


def said(capfd: pytest.CaptureFixture[str], text: str, mark: str = "") -> str:
    say(text, mark)
    return capfd.readouterr().err


def test_secrets_and_escapes(capfd: pytest.CaptureFixture[str]) -> None:
    found = said(capfd, f"torchbus: password={SECRET} a\x1b[2J\nnext", "[rank 1] ")
    assert found == "[rank 1] torchbus: password=(hidden) a\\x1b[2J\n[rank 1] next\n"


def test_a_report_of_places_has_code_and_no_literal(capfd: pytest.CaptureFixture[str]) -> None:
    sources = ["token = model(x)", f'login(password="{SECRET}")']
    places = [RankPosition(rank, "", "a.py:3", source, 0) for rank, source in enumerate(sources)]
    found = said(capfd, report(places, 2, 3.0))
    assert "a.py:3: token = model(x)\n" in found and SECRET not in found


def test_a_traceback_of_another_rank_has_code_and_no_secret(
    capfd: pytest.CaptureFixture[str],
) -> None:
    lines = [
        "Traceback",
        '  File "a.py", line 3',
        "    token = login(key)",
        f"Error: token={SECRET}",
    ]
    found = said(capfd, "\n".join(f"[rank 1] {line}" for line in lines))
    assert found.endswith("[rank 1]     token = login(key)\n[rank 1] Error: token=(hidden)\n")


def test_what_a_rank_wrote_before_it_was_killed() -> None:
    errors = error_file()
    errors.write(
        b'Traceback (most recent call last):\n  File "a.py", line 3, in f\n'
        b"    token = login(key)\n" + f"ValueError: token={SECRET}\n".encode()
    )
    child = Child(1, 0, None, errors)
    shown = child.last_errors()
    assert "    token = login(key)\nValueError: token=(hidden)" in shown
    child.close()


def test_nothing_else_writes() -> None:
    writes = re.compile(r"\bprint\((?!secrets)|__stderr__|std(err|out)\.write\(")
    found = {path.name: writes.findall(path.read_text("utf-8")) for path in FOLDER.glob("*.py")}
    writers = sorted(name for name in found if found[name])
    assert writers == ["stall.py", "terminal.py"]  # the latter on behalf of a stopped parent
