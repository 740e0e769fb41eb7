"""The process group as a plugin, for strategies that do not inherit from ``Strategy``.

They name it in their ``companions``.
"""

from __future__ import annotations

from torchbus.plugin import Context, hookimpl

from torchbus_strategy import process_group


class ProcessGroup:
    """Opens torch's default process group before the strategy starts.

    The strategy's attribute ``backend``, if it has one, names the backend.
    """

    @hookimpl(tryfirst=True)
    def session_start(self, session: Context) -> None:
        if session.world_size == 1:
            return
        named = [
            plugin
            for _, plugin in session.bus.plugins()
            if "strategy" in getattr(plugin, "owns", ())
        ]
        process_group.join_ranks(session, getattr(named[0], "backend", None))
