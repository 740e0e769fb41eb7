"""Strategies for devices that no machine of ours has: their engines, on the CPU."""

from __future__ import annotations

from torchbus.bus.base import hookimpl
from torchbus.runtime.context import Context
from torchbus.world import World

from torchbus_strategy.strategy import Strategy
from torchbus_tpu.strategy import TPU


class TPUsEngine(TPU):
    """Averages as under ``tpu``; gloo stands in for torch_tpu's backend."""

    form = None

    def __init__(self) -> None:
        Strategy.__init__(self)

    @hookimpl
    def launch(self, session: Context) -> World:
        return Strategy.launch(self, session)

    @hookimpl
    def session_start(self, session: Context) -> None:
        Strategy.session_start(self, session)
