"""The exceptions, one class per remedy, without secrets if a redaction package is installed.

Every message names the offender, the facts and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import ClassVar


def redacted(text: str) -> str:
    """Return the text without secrets, or unchanged if no redaction package is installed."""
    return _hide()(text)


def an(noun: str) -> str:
    """Return a noun with its article, as in "an int" and "a str"."""
    return f"{'an' if noun[0] in 'AEIOaeio' else 'a'} {noun}"


@cache
def _hide() -> Callable[[str], str]:
    found = list(entry_points(group="torchbus.redact"))
    return found[0].load() if found else str


class TorchbusError(Exception):
    """Base class of all errors that torchbus raises. Its message never shows a secret."""

    def __str__(self) -> str:
        return redacted(super().__str__())


class UsageError(TorchbusError, ValueError):
    """The call is wrong: unknown option or strategy, impossible devices, bad type.

    Raised before anything starts.
    """


class PluginNotInstalled(UsageError):
    """A strategy, option, logger or method needs a plugin that is not installed.

    The message gives the pip command.
    """


class VerbUnavailable(UsageError, AttributeError):
    """A name on the session that is not available now. ``hasattr`` returns False."""


class PluginConflict(UsageError):
    """Two active plugins own the same thing, or two installed packages offer the same name."""


class VerbNotInstalled(PluginNotInstalled, VerbUnavailable):
    """A name on the session whose plugin is not installed. The message gives the pip command."""


class VerbContested(PluginConflict, VerbUnavailable):
    """A name on the session that two installed packages offer."""


class PluginError(TorchbusError):
    """A plugin raised. The message names it; the original exception is the cause."""


class LaunchError(TorchbusError, RuntimeError):
    """The ranks could not be started or joined."""


class RankFailed(TorchbusError, RuntimeError):
    """Another rank failed first. Its own traceback was printed, or is in the message."""


class RanksDiverged(TorchbusError, RuntimeError):
    """The ranks do different things: the data order, steps or calls of backward differ.

    The first one in a session is final: the session ends the job even if the loop catches it.
    """

    observers: ClassVar[list[Callable[[RanksDiverged], object]]] = []
    """Functions to call with each new error. The active session adds one that ends the job."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        for observe in self.observers:
            observe(self)


class Unsupported(TorchbusError, RuntimeError):
    """The strategy can't do this correctly. The message says what to use instead."""
