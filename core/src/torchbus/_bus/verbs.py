"""What plugins add to ``s.``: such a plugin becomes active when one of its verbs is used first."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from torchbus._bus import arguments, discovery
from torchbus._bus.needs import refuse_verb
from torchbus.errors import PluginConflict, PluginNotInstalled, TorchbusError, UsageError, VerbContested, VerbNotInstalled, VerbUnavailable

if TYPE_CHECKING:
    from torchbus._session.context import Context


class Verbs:
    """Finds the plugin behind a verb."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self.forget_listeners()
        session.bus.on_change = self.forget_listeners

    def forget_listeners(self) -> None:
        """There are other plugins, or the session is over."""
        self.log: Callable[[dict[str, Any], dict[str, Any]], object] = self._first_log

    def need(self, event: str, verb: str) -> None:
        """Somebody must hear the event that a verb sends."""
        if not self._session.bus.heard(event):
            self._activate(verb, discovery.find("verb", verb))

    def find(self, name: str) -> Any:
        """A plugin's method or property. A method of a plugin that is not active yet activates it when it is called, a property at once.

        Raises AttributeError where no plugin has such a verb, and errors that are AttributeErrors too where it can't be had: so ``hasattr``
        is False.
        """
        try:
            return self._find(name)
        except VerbUnavailable:
            raise
        except PluginNotInstalled as error:
            raise VerbNotInstalled(*error.args) from None
        except PluginConflict as error:
            raise VerbContested(*error.args) from None
        except TorchbusError as error:
            raise VerbUnavailable(*error.args) from error

    def _find(self, name: str) -> Any:
        owner = self._owner(name)
        if owner is not None:
            return getattr(owner, name)
        entry = self._entry(name)
        maker = discovery.load(entry)
        method = inspect.getattr_static(maker, name, None) if isinstance(maker, type) else None
        if not isinstance(method, FunctionType):
            return getattr(self._activate(name, entry), name)

        @functools.wraps(MethodType(method, self))  # whose signature has no self
        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(self._owner(name) or self._activate(name, entry), name)(*args, **kwargs)

        return call

    def _owner(self, name: str) -> Any:
        """The active plugin that has the verb."""
        return next((plugin for _, plugin in self._session.bus.plugins() if name in getattr(plugin, "verbs", ())), None)

    @staticmethod
    def _entry(name: str) -> EntryPoint:
        try:
            return discovery.find("verb", name)
        except TorchbusError as error:
            if type(error) is UsageError:
                raise AttributeError(f"session has no {name!r}: {error}") from None
            raise

    def _first_log(self, metrics: dict[str, Any], options: dict[str, Any]) -> None:
        """Find who listens; from then on it is called without a search."""
        self._refuse_outside("log")
        self.need("log_metrics", "log")
        bus = self._session.bus
        listeners, skips = bus.listeners("log_metrics"), bus.listeners("skip_logging")

        def log(metrics: dict[str, Any], options: dict[str, Any]) -> None:
            if not any(skip() for skip in skips):
                for listener in listeners:
                    listener(metrics, options)

        self.log = log if skips or len(listeners) > 1 else listeners[0]
        self.log(metrics, options)

    def _activate(self, verb: str, entry: EntryPoint) -> Any:
        """Add the plugin that brings a verb, in mid-session."""
        self._refuse_outside(verb)
        refuse_verb(discovery.load(entry), verb)
        plugin = arguments.make(entry)
        self._session.add_plugin(plugin, entry.name)
        return plugin

    def _refuse_outside(self, verb: str) -> None:
        if not self._session.block.has_begun:
            raise UsageError(f"s.{verb} outside its session, which hears nothing there: use it inside `with session(...) as s:`")
