"""What is installed, read from entry points. Discovery is not activation: nothing is imported until it is asked for.

Groups: ``torchbus`` (plugins by name), ``torchbus.strategy``, ``torchbus.logger``, ``torchbus.option`` (the options
of ``session`` that a plugin's constructor takes), ``torchbus.verb`` (methods of the session that need a plugin) and
``torchbus.companion`` (plugins that come along where the script has imported the module of that name).
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from torchbus.catalog import DISTRIBUTIONS
from torchbus.errors import PluginError, PluginNotInstalled, UsageError

KINDS = ("plugin", "strategy", "logger", "option", "verb", "companion")


@cache
def installed(kind: str) -> dict[str, EntryPoint]:
    """Installed entry points of a kind, by name."""
    group = "torchbus" if kind == "plugin" else f"torchbus.{kind}"
    return {entry.name: entry for entry in sorted(entry_points(group=group), key=lambda entry: entry.name)}


def find(kind: str, name: str, also: tuple[str, ...] = ()) -> EntryPoint:
    """The entry point of that name. ``also`` are names that exist without a plugin, for the hint.

    Raises PluginNotInstalled with the pip line where a known package has it, else UsageError with the nearest names.
    """
    entry = installed(kind).get(name)
    if entry is not None:
        return entry
    distribution = DISTRIBUTIONS.get(kind, {}).get(name)
    what = {"verb": f"s.{name}()", "option": f"option {name!r}"}.get(kind, f"{kind} {name!r}")
    if distribution is not None:
        raise PluginNotInstalled(f"{what} needs a plugin that is not installed: pip install {distribution}")
    known = sorted({*installed(kind), *DISTRIBUTIONS.get(kind, {}), *also})
    near = difflib.get_close_matches(name, known, 3, 0.5)
    hint = f"did you mean {' or '.join(repr(word) for word in near)}?" if near else f"known are {', '.join(known) or 'none'}"
    raise UsageError(f"unknown {what}: {hint}")


def load(entry: EntryPoint) -> Any:
    """Import what an entry point names. Raises PluginError, naming the distribution."""
    try:
        return entry.load()
    except Exception as error:
        raise PluginError(f"plugin {entry.name} ({version(entry)}) could not be imported: {error!r}") from error


def version_of(package: str) -> str:
    """The version of the distribution that offers a plugin in this top-level package, "" if none does."""
    for kind in KINDS:
        for entry in installed(kind).values():
            if entry.module.split(".")[0] == package and entry.dist is not None:
                return entry.dist.version
    return ""


def version(entry: EntryPoint) -> str:
    """Distribution and version of an entry point, as in "torchbus-ddp 0.1.0"."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "unknown distribution"
