"""``torchbus plugins`` lists the installed plugins."""

from __future__ import annotations

import json
from dataclasses import asdict

import torchbus
from torchbus._bus import discovery
from torchbus._cli.fits import misfits
from torchbus._cli.installed import InstalledPlugin, installed_plugins
from torchbus._cli.parser import Parser
from torchbus._cli.table import table

DESCRIPTION = """List the installed plugins: their packages, what they add to
session(...), and the events they listen to.

A session uses a plugin that it names, or whose strategy, logger or option it names. A plugin that
is only installed costs nothing.
"""
EXAMPLES = """  torchbus plugins
  torchbus plugins --check                    which versions don't fit each other?
  torchbus plugins --json | python -m json.tool
  pip install torchbus-ddp                    adds a plugin
"""


def main(argv: list[str]) -> int:
    """List the installed plugins, their options and the events they listen to."""
    parser = Parser("plugins", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list of objects instead of a table"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="print only what doesn't fit or can't be imported; exit status 1 if there is any",
    )
    given = parser.parse(argv)
    found = installed_plugins()
    if given.check:
        return _check(found, given.json)
    print(json.dumps([asdict(one) for one in found], indent=2) if given.json else _text(found))
    return 0


def _check(found: list[InstalledPlugin], as_json: bool) -> int:
    wrong = [*misfits(), *(plugin.error for plugin in found if plugin.error is not None)]
    if as_json:
        print(json.dumps(wrong, indent=2))
    else:
        packages = {plugin.distribution for plugin in found}
        fine = f"torchbus {torchbus.__version__} and {len(packages)} packages with plugins fit"
        print("\n".join(wrong) or fine)
    return int(bool(wrong))


def _text(found: list[InstalledPlugin]) -> str:
    if not found:
        known = discovery.distributions("plugin").values()
        return f"no plugin is installed; pip install {' or '.join(known)}"
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
