"""``torchbus new-plugin NAME``."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

import torchbus
from torchbus._bus import discovery
from torchbus._cli.parser import Parser, complain
from torchbus._cli.scaffold.package import KINDS, Names, write
from torchbus.errors import TorchbusError, UsageError

DESCRIPTION = """Write a package with a plugin: sources, tests and pyproject.toml. It passes ruff,
mypy, its tests and the conformance kit. Replace what it does by your own.
"""
EXAMPLES = """  torchbus new-plugin nan-guard                  the folder torchbus-nan-guard
  torchbus new-plugin my-tracker --kind logger   for session(logger="my_tracker")
  torchbus new-plugin ring --kind strategy code/ring
"""
USED = ("plugin", "strategy", "logger", "option", "command")


def main(argv: list[str]) -> int:
    """Write a package with a plugin of your own, and its tests."""
    parser = Parser("new-plugin", DESCRIPTION, EXAMPLES)
    parser.add_argument("name", help="of the plugin, such as nan-guard")
    parser.add_argument("folder", nargs="?", type=Path, help="default: torchbus-NAME")
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0], help="default: listener")
    given = parser.parse(argv)
    try:
        names = _names(given.name)
        folder = given.folder or Path(names.distribution)
        _refuse_existing(folder)
        write(folder, given.kind, names)
    except TorchbusError as error:
        return complain("torchbus new-plugin", error)
    except OSError as error:
        return complain(
            "torchbus new-plugin", UsageError(f"{folder} can't be written: {error.strerror}")
        )
    print(
        f"written: {folder}\n\nnext:\n  cd {folder}\n  pip install -e '.[test]'\n  pytest\n\n"
        f"README.md says how to use it, and how to run the other checks."
    )
    return 0


def _names(given: str) -> Names:
    """Return the names of a plugin. Raises UsageError for one that is none, or is taken."""
    name = given.removeprefix("torchbus-").removeprefix("torchbus_").replace("-", "_")
    if not re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", name) or keyword.iskeyword(name):
        raise UsageError(
            f"{given!r} is no name for a plugin: use small letters, digits and '-', such as"
            " nan-guard"
        )
    for kind in USED:
        _refuse_taken(given, name, kind)
    return Names(name, torchbus.__version__)


def _refuse_taken(given: str, name: str, kind: str) -> None:
    there = discovery.installed(kind).get(name)
    owner = (
        discovery.version(there) if there is not None else discovery.distributions(kind).get(name)
    )
    if owner is not None:
        raise UsageError(f"the name {given!r} is taken: {owner} has a {kind} {name!r}. Use another")


def _refuse_existing(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists already, and is not empty: name another folder")
