"""torchbus-report: lists local runs, and compares them on one HTML page."""

from __future__ import annotations

from torchbus_report.page import page
from torchbus_report.runs.reading import read
from torchbus_report.runs.summary import LoggedRun

__all__ = ["LoggedRun", "page", "read"]
