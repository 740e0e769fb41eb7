"""The events that a plugin hears."""

from __future__ import annotations

from collections.abc import Callable

from torchbus import events
from torchbus.events import hookimpl


class Recorder:
    """A plugin that notes the names of the events it hears, in ``names``.

    It listens to those given, by default to all but ``run_backward``, whose listener would have to do the work.
    """

    def __init__(self, *listened: str) -> None:
        self.names: list[str] = []
        for name in listened or ALL_EVENTS - {"run_backward"}:
            setattr(self, name, self._listener(name))

    def _listener(self, name: str) -> Callable[[], None]:
        def listen() -> None:
            self.names.append(name)

        return hookimpl(listen)


ALL_EVENTS = frozenset(name for name, value in vars(events).items() if hasattr(value, "torchbus_spec"))
