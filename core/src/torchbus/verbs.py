"""What plugins add to ``s.``: such a plugin becomes active when one of its verbs is used first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchbus import arguments, discovery
from torchbus.errors import PluginNotInstalled, UsageError

if TYPE_CHECKING:
    from torchbus.session import Session


class Verbs:
    """Finds the plugin behind a verb."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.forget_listeners()

    def forget_listeners(self) -> None:
        """There are more plugins."""
        self.log: Callable[[dict[str, Any], dict[str, Any]], object] = self._first_log

    def need(self, event: str, verb: str) -> None:
        """Somebody must hear the event that a verb sends."""
        if not self._session.bus.heard(event):
            self._activate(verb)

    def find(self, name: str) -> Any:
        """A plugin's method or property. Raises AttributeError where no plugin has such a verb, PluginNotInstalled where one has that is
        not installed."""
        for _, plugin in self._session.bus.plugins():
            if name in getattr(plugin, "verbs", ()):
                return getattr(plugin, name)
        try:
            discovery.find("verb", name)
        except PluginNotInstalled:
            raise
        except UsageError as error:
            raise AttributeError(f"session has no {name!r}: {error}") from None
        return getattr(self._activate(name), name)

    def _first_log(self, metrics: dict[str, Any], options: dict[str, Any]) -> None:
        """Find who listens; from then on it is called without a search."""
        self.need("log_metrics", "log")
        bus = self._session.bus
        listeners, skips = bus.listeners("log_metrics"), bus.listeners("skip_logging")

        def log(metrics: dict[str, Any], options: dict[str, Any]) -> None:
            if not any(skip() for skip in skips):
                for listener in listeners:
                    listener(metrics, options)

        self.log = log if skips or len(listeners) > 1 else listeners[0]
        self.log(metrics, options)

    def _activate(self, verb: str) -> Any:
        """Add the plugin that brings a verb, in mid-session."""
        entry = discovery.find("verb", verb)
        plugin = arguments.make(entry)
        self._session.bus.register(plugin, entry.name)
        starter = getattr(plugin, "session_start", None)
        if starter is not None:
            starter(session=self._session)
        self._session.seams.refresh()
        return plugin
