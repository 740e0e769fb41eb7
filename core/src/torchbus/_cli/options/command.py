"""``torchbus options [NAME]``."""

from __future__ import annotations

import json
from dataclasses import asdict

from torchbus._bus import discovery
from torchbus._cli.options.known import Option, known_options
from torchbus._cli.parser import Parser, complain
from torchbus._cli.table import table
from torchbus.errors import TorchbusError

DESCRIPTION = """Print what session(...) takes here: the session's own options, and those of the
installed plugins. `torchbus run` takes the same ones.
"""
EXAMPLES = """  torchbus options
  torchbus options precision
  torchbus options --json | python -m json.tool
"""
FIELDS = ("name", "kind", "default", "package", "plugin", "words")


def main(argv: list[str]) -> int:
    """Print the options of session(...): type, default, package and meaning."""
    parser = Parser("options", DESCRIPTION, EXAMPLES)
    parser.add_argument("name", nargs="?", help="only this option")
    parser.add_argument("--json", action="store_true", help="print a JSON list of objects")
    given = parser.parse(argv)
    found = [one for one in known_options() if given.name in (None, one.name)]
    if not found:
        try:
            discovery.find("option", given.name, tuple(one.name for one in known_options()))
        except TorchbusError as error:
            return complain("torchbus options", error)
    if given.json:
        told = [{key: asdict(one)[key] for key in FIELDS} for one in found]
        print(json.dumps(told, indent=2))
        return 0
    print("\n\n".join(map(_whole, found)) if given.name else table([HEAD, *map(_row, found)]))
    return 0


HEAD = ("OPTION", "DEFAULT", "PLUGIN", "MEANING")


def _row(one: Option) -> tuple[str, str, str, str]:
    return one.name, one.default, one.plugin, one.words


def _whole(one: Option) -> str:
    lines = [f"{one.name}: {one.kind} = {one.default}", f"of {one.plugin} ({one.package})"]
    return "\n".join([*lines, one.words] if one.words else lines)
