"""Writes pages from the sources, or compares them: what the scripts ``generate_*.py`` share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def run(page: Path, text: Callable[[], str], description: str | None) -> int:
    """Write the page; with ``--check``, exit with 1 if it is not up to date."""
    parser = argparse.ArgumentParser(description=(description or "").partition("::")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and compare")
    if not parser.parse_args().check:
        page.write_text(text(), encoding="utf-8")
    elif page.read_text(encoding="utf-8") != text():
        print(f"{page.name} is not up to date: run python {sys.argv[0]}", file=sys.stderr)
        return 1
    return 0
