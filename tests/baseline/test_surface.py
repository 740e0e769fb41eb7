"""What people and plugins see changes only when it is meant to, and then in a diff."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from . import snapshots

HERE = Path(__file__).parent
AGAIN = "if this is meant: .venv/bin/python tests/baseline/snapshots.py, and read the diff"


def test_listeners_and_their_order() -> None:
    assert snapshots.listeners() == (HERE / "listeners.txt").read_text(), AGAIN


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse wraps by version of Python")
def test_help_of_each_command() -> None:
    assert snapshots.helps() == (HERE / "help.txt").read_text(), AGAIN
