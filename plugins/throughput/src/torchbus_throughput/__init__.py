"""torchbus-throughput: samples and tokens per second, MFU, and a summary of the models."""

from __future__ import annotations

from torchbus_throughput.meter import Rates, Window
from torchbus_throughput.plugin import Throughput
from torchbus_throughput.summary import ModelSummary

__all__ = ["ModelSummary", "Rates", "Throughput", "Window"]
