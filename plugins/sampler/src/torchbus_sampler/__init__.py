"""torchbus-sampler: each rank gets its share of the user's own order of data."""

from __future__ import annotations

from torchbus_sampler.metrics import Metrics
from torchbus_sampler.order import share_sizes
from torchbus_sampler.plugin import Sampler

__all__ = ["Metrics", "Sampler", "share_sizes"]
