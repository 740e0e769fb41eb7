"""Verbs: methods that plugins add to the session. A plugin may be activated by its first verb."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint
from types import FunctionType, MethodType

from torchbus.bus import discovery
from torchbus.bus.registry import Bus
from torchbus.errors import (
    PluginConflict,
    PluginNotInstalled,
    TorchbusError,
    UsageError,
    VerbContested,
    VerbNotInstalled,
    VerbUnavailable,
)


class VerbFinder:
    """Finds the plugin behind a verb.

    ``user`` is the object on which the loop calls verbs. ``activate`` registers the plugin of an
    entry point when one of its verbs is first used.
    """

    def __init__(
        self, bus: Bus, user: object, activate: Callable[[str, EntryPoint], object]
    ) -> None:
        self._bus, self._user, self._activate = bus, user, activate
        self._cached: set[str] = set()

    def find(self, name: str) -> object:
        """Return a plugin's method or property.

        A method of an inactive plugin activates it when it is called; a property does at once.
        Raises AttributeError if no plugin has such a verb. If the plugin is not available, the
        error is an AttributeError too. So ``hasattr`` returns False.
        """
        try:
            return self._find(name)
        except VerbUnavailable:
            raise
        except (PluginNotInstalled, PluginConflict) as error:
            is_missing = isinstance(error, PluginNotInstalled)
            raise (VerbNotInstalled if is_missing else VerbContested)(*error.args) from None
        except TorchbusError as error:
            raise VerbUnavailable(*error.args) from error

    def names(self) -> set[str]:
        """Return the verbs of active and of installed plugins."""
        active = (getattr(plugin, "verbs", ()) for _, plugin in self._bus.plugins())
        return {*discovery.installed("verb"), *(verb for verbs in active for verb in verbs)}

    def forget(self) -> None:
        """Forget all verbs that were looked up: plugins have changed, or the session has ended."""
        for name in self._cached:
            vars(self._user).pop(name, None)
        self._cached.clear()

    def _find(self, name: str) -> object:
        owner = self._owner(name)
        if owner is not None:
            return self._of_active(owner, name)
        entry = self._entry(name)
        maker = discovery.load(entry)
        method = inspect.getattr_static(maker, name, None) if isinstance(maker, type) else None
        if not isinstance(method, FunctionType):
            return getattr(self._activate(name, entry), name)

        @functools.wraps(MethodType(method, self))  # bound, so that the signature has no self
        def call(*args: object, **kwargs: object) -> object:
            return getattr(self._owner(name) or self._activate(name, entry), name)(*args, **kwargs)

        return call

    def _of_active(self, owner: object, name: str) -> object:
        """Return the verb of an active plugin.

        A method becomes an attribute of the session, where Python finds it without a search.
        """
        found = getattr(owner, name)
        if isinstance(found, MethodType):
            vars(self._user)[name] = found
            self._cached.add(name)
        return found

    def _owner(self, name: str) -> object:
        """Return the active plugin that has the verb, or None."""
        return next(
            (plugin for _, plugin in self._bus.plugins() if name in getattr(plugin, "verbs", ())),
            None,
        )

    def _entry(self, name: str) -> EntryPoint:
        public = tuple(one for one in dir(self._user) if not one.startswith("_"))
        try:
            return discovery.find("verb", name, public)
        except TorchbusError as error:
            if type(error) is UsageError:
                raise AttributeError(str(error)) from None
            raise


def refuse_outside(verb: str, has_begun: bool) -> None:
    """Raise UsageError for a verb that is used while no session runs."""
    if not has_begun:
        raise UsageError(
            f"s.{verb} was called outside its session: call it inside `with session(...) as s:`"
        )
