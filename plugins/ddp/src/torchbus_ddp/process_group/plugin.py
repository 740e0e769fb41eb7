"""The process group alone, for strategies that bring an engine of their own (their ``companions`` name it)."""

from __future__ import annotations

from torchbus.plugin import Context, hookimpl

from torchbus_ddp import events
from torchbus_ddp.process_group import opening as group
from torchbus_ddp.strategy import share_cpu


class Events:
    """Those of torchbus-ddp that are fired without its reducer."""

    init_process_group = events.init_process_group
    own_tensors = events.own_tensors


class ProcessGroup:
    """Opens torch's default process group before the strategy starts; its attribute ``backend``, if it has one, says which."""

    declares_events = Events

    @hookimpl(tryfirst=True)
    def session_start(self, session: Context) -> None:
        if session.world_size == 1:
            return
        strategies = [plugin for _, plugin in session.bus.plugins() if "strategy" in getattr(plugin, "owns", ())]
        group.claim_device(session)
        share_cpu(session)
        group.open_group(session, group.choose_backend(session, getattr(strategies[0], "backend", None)))
        group.share_random_state(session)
