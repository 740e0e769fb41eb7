"""Base classes for plugins that report to an experiment tracker.

Exports the base class, which handles failures, the description of a run, and the classes of logged
values that are not numbers.
"""

from __future__ import annotations

from torchbus_log.trackers.tracker import Tracker, chosen_by_rank0, new_run_name
from torchbus_log.trackers.values import (
    Histogram,
    Image,
    LoggedTable,
    Values,
    describe_run,
    plain,
    without_secrets,
)

__all__ = [
    "Histogram",
    "Image",
    "LoggedTable",
    "Tracker",
    "Values",
    "chosen_by_rank0",
    "describe_run",
    "new_run_name",
    "plain",
    "without_secrets",
]
