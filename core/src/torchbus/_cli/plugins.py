"""``torchbus plugins`` lists the installed plugins."""

from __future__ import annotations

import json
from dataclasses import asdict

from torchbus._bus.catalog import DISTRIBUTIONS
from torchbus._cli.installed import InstalledPlugin, installed_plugins
from torchbus._cli.parser import Parser
from torchbus._cli.table import table

DESCRIPTION = """List the installed plugins: their packages, what they add to
session(...), and the events they listen to.

A session uses a plugin that it names, or whose strategy, logger or option it names. A plugin that
is only installed costs nothing.
"""
EXAMPLES = """  torchbus plugins
  torchbus plugins --json | python -m json.tool
  pip install torchbus-ddp                    adds a plugin
"""


def main(argv: list[str]) -> int:
    """List the installed plugins, their options and the events they listen to."""
    parser = Parser("plugins", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list of objects instead of a table"
    )
    as_json = parser.parse(argv).json
    found = installed_plugins()
    print(json.dumps([asdict(plugin) for plugin in found], indent=2) if as_json else _text(found))
    return 0


def _text(found: list[InstalledPlugin]) -> str:
    if not found:
        return (
            f"no plugin is installed; pip install {' or '.join(DISTRIBUTIONS['plugin'].values())}"
        )
    return table([("NAME", "PACKAGE", "PROVIDES", "LISTENS TO"), *map(_row, found)])


def _row(plugin: InstalledPlugin) -> tuple[str, str, str, str]:
    provides = [
        f"{kind}: {', '.join(names)}"
        for kind, names in (
            ("strategy", plugin.strategies),
            ("logger", plugin.loggers),
            ("options", plugin.options),
            ("methods", [f"s.{verb}()" for verb in plugin.verbs]),
        )
        if names
    ]
    return (
        plugin.name,
        f"{plugin.distribution} {plugin.version}",
        "; ".join(provides),
        plugin.error or ", ".join(plugin.events),
    )
