"""torchbus-throughput: how fast the loop is, and a summary of its models."""

from __future__ import annotations

from torchbus_throughput.meter import Rates, Window
from torchbus_throughput.plugin import Throughput
from torchbus_throughput.summary import ModelSummary

__all__ = ["ModelSummary", "Rates", "Throughput", "Window"]
