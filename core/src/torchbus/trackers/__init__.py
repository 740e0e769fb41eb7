"""For plugins that report to an experiment tracker.

It has a base class with the failure policy, the description of a run, and what is logged beside
numbers.
"""

from __future__ import annotations

from torchbus.trackers.agreement import chosen_by_rank0, new_run_name
from torchbus.trackers.description import describe_run, plain, without_secrets
from torchbus.trackers.histogram import Histogram, Values
from torchbus.trackers.image import Image
from torchbus.trackers.table import Table
from torchbus.trackers.tracker import Tracker

__all__ = [
    "Histogram",
    "Image",
    "Table",
    "Tracker",
    "Values",
    "chosen_by_rank0",
    "describe_run",
    "new_run_name",
    "plain",
    "without_secrets",
]
