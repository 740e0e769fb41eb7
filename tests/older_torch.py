"""On a torch older than the newest that torchbus was seen with, a refusal for its age is a skip.

The refusal is the product's own. So a test of a strategy that needs a newer torch needs no mark,
and the summary of the run lists what this torch can't do.
"""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest
import torch
from torchbus.compat.required import NEWEST

TOO_OLD = re.compile(r"(?:needs|install) torch [\d.]+ or later")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport]:
    report = (yield).get_result()  # type: ignore[attr-defined]
    refusal = TOO_OLD.search(report.longreprtext) if report.failed else None
    if refusal is not None and torch.__version__ < NEWEST:
        path, line, _ = item.location
        report.outcome = "skipped"
        report.longrepr = (path, line or 0, f"Skipped: {refusal[0]}; this is {torch.__version__}")
