"""The process group as a plugin, for strategies that do not inherit from ``Strategy``.

They name it in their ``companions``.
"""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import Store
from torchbus.plugin import Context, hookimpl

from torchbus_strategy import opening


class ProcessGroup:
    """Opens torch's default process group before the strategy starts.

    The strategy's attribute ``backend``, if it has one, says which backend.
    """

    @hookimpl(trylast=True)
    def init_process_group(
        self, session: Context, backend: str, store: Store, timeout: timedelta
    ) -> bool:
        return opening.make_group(session, backend, store, timeout)

    @hookimpl(tryfirst=True)
    def session_start(self, session: Context) -> None:
        if session.world_size == 1:
            return
        named = [
            plugin
            for _, plugin in session.bus.plugins()
            if "strategy" in getattr(plugin, "owns", ())
        ]
        opening.join_ranks(session, getattr(named[0], "backend", None))
