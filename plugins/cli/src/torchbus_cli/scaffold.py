"""``torchbus new-plugin``: writes the skeleton of a plugin package from a template."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from pathlib import Path
from string import Template

import torchbus
from torchbus.bus import discovery
from torchbus.plugin import TorchbusError, UsageError, an

from torchbus_cli.parser import Parser, complain

KINDS = ("listener", "logger", "strategy")
TEMPLATE = Path(__file__).parent / "template"
SUFFIX = ".txt"  # ends the names of template files, so that tools do not treat them as sources


@dataclass(frozen=True)
class TemplateNames:
    """Names in the template. ``name`` is the plugin's, and ``version`` that of torchbus."""

    name: str
    version: str

    @property
    def distribution(self) -> str:
        return f"torchbus-{self.name.replace('_', '-')}"

    @property
    def package(self) -> str:
        return f"torchbus_{self.name}"

    def values(self) -> dict[str, str]:
        """Return the values of the template's placeholders, such as ``$name``."""
        major, minor = self.version.split(".")[:2]
        return {
            "name": self.name,
            "distribution": self.distribution,
            "package": self.package,
            "class": "".join(part.capitalize() for part in self.name.split("_")),
            "torchbus": f"torchbus>={major}.{minor},<{major}.{int(minor) + 1}",
        }


def write(folder: Path, kind: str, names: TemplateNames) -> None:
    """Write the package of a plugin of this kind."""
    for source in (TEMPLATE / "common", TEMPLATE / kind):
        _write(source, folder, names.values())
    (folder / "src" / names.package / "py.typed").touch()


def _write(source: Path, folder: Path, values: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for entry in sorted(source.iterdir()):
        name = entry.name.removesuffix(SUFFIX)
        path = folder / (values["package"] if name == "PACKAGE" else name)
        if entry.is_dir():
            _write(entry, path, values)
        else:
            text = Template(entry.read_text(encoding="utf-8")).substitute(values)
            path.write_text(text, encoding="utf-8")


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


def _names(given: str) -> TemplateNames:
    """Return the names of a plugin. Raises UsageError for an invalid name, or one in use."""
    name = given.removeprefix("torchbus-").removeprefix("torchbus_").replace("-", "_")
    if not re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", name) or keyword.iskeyword(name):
        raise UsageError(
            f"{given!r} is not a valid plugin name: use small letters, digits and '-', such as"
            " nan-guard"
        )
    for kind in USED:
        _refuse_consumed(given, name, kind)
    return TemplateNames(name, torchbus.__version__)


def _refuse_consumed(given: str, name: str, kind: str) -> None:
    there = discovery.installed(kind).get(name)
    owner = (
        discovery.version(there) if there is not None else discovery.distributions(kind).get(name)
    )
    if owner is not None:
        raise UsageError(
            f"the name {given!r} is taken: {owner} has {an(kind)} {name!r}. Use another"
        )


def _refuse_existing(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists already, and is not empty: name another folder")
