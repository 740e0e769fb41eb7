"""torchbus-pipeline: consecutive layers of a model on consecutive ranks, for any loop."""

from __future__ import annotations

from torchbus_pipeline.strategy import Pipeline, RpcSequential

__all__ = ["Pipeline", "RpcSequential"]
