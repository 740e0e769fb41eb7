"""torchbus-horovod: Horovod's all-reduce, for any loop."""

from __future__ import annotations

from torchbus_horovod.strategy import Horovod

__all__ = ["Horovod"]
