"""``torchbus run --config run.toml``: options of the session from a TOML file."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchbus._bus import discovery
from torchbus._bus.markers import hookimpl
from torchbus._bus.options import CORE_OPTIONS
from torchbus.errors import PluginError, TorchbusError, UsageError

PLUGINS = "plugins"


class Config:
    """What a file says. Explains which options come from it, and which from the command line.

    ``options``: by name. ``plugins``: names of installed ones.
    """

    def __init__(self, path: Path) -> None:
        """Read a file. Raises UsageError for what is no TOML, and for a key that is no option."""
        self._path = path
        self.options = _read(path)
        self.plugins = self.options.pop(PLUGINS, [])
        if not isinstance(self.plugins, list) or {*map(type, self.plugins)} - {str}:
            raise UsageError(f"{path}: {PLUGINS} = {self.plugins!r}: it must be a list of names")
        for name in self.options:
            if name not in CORE_OPTIONS:
                self._find(name)
        self._overridden: dict[str, object] = {}

    def _find(self, name: str) -> None:
        try:
            discovery.find("option", name, (*CORE_OPTIONS, PLUGINS))
        except TorchbusError as error:
            raise type(error)(f"{self._path}: {error}") from None

    def merged(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Return all options: those of the command line win."""
        self._overridden = {name: given[name] for name in self.options if name in given}
        return {**self.options, **given}

    def blames(self, error: TorchbusError) -> str:
        """Return a note for an error that names options of the file, or ""."""
        named = [
            name
            for name in self.options
            if name not in self._overridden and re.search(rf"\b{name}\b", str(error))
        ]
        return f" ({', '.join(named)}: from {self._path})" if named else ""

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        kept = [
            f"{name}={value!r}"
            for name, value in self.options.items()
            if name not in self._overridden
        ]
        if self.plugins:
            kept.append(f"{PLUGINS} {', '.join(self.plugins)}")
        lines = [f"from {self._path}: {', '.join(kept) or 'nothing'}"]
        lines += [
            f"from the command line: {name}={value!r}, not {self.options[name]!r} of {self._path}"
            for name, value in self._overridden.items()
        ]
        return {"options": lines}


def _read(path: Path) -> dict[str, Any]:
    toml = _toml()
    try:
        with path.open("rb") as file:
            found: dict[str, object] = toml.load(file)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from None
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML: {error}") from None
    return found


def _toml() -> Any:
    """Return Python's own parser, or the package of which it was made."""
    try:
        return importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ModuleNotFoundError:
        raise PluginError(
            "Python 3.10 reads no TOML by itself, so --config needs tomli: pip install tomli"
        ) from None
