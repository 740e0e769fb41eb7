"""``torchbus stubs``."""

from __future__ import annotations

import sysconfig
from importlib.metadata import EntryPoint
from pathlib import Path

from torchbus._bus import discovery
from torchbus._cli.options import stubs
from torchbus._cli.options.known import known_options
from torchbus._cli.parser import Parser

DESCRIPTION = """Tell type checkers and editors of the plugins that are installed here.

torchbus has types for its own plugins. For those of others, this command writes the partial stub
package torchbus-stubs (PEP 561) into the environment, which mypy and pyright find by themselves.
Run it again when plugins come or go; delete the folder to undo it.
"""
EXAMPLES = """  torchbus stubs
  torchbus stubs --to .venv/lib/python3.12/site-packages
"""
OURS = {
    "torchbus",
    *(name for kind in discovery.KINDS for name in discovery.distributions(kind).values()),
}
WRITTEN = "Written by `torchbus stubs` from the installed plugins."


def main(argv: list[str]) -> int:
    """Write types of the installed plugins for mypy, pyright and editors."""
    parser = Parser("stubs", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "--to", type=Path, default=Path(sysconfig.get_paths()["purelib"]), help="the folder"
    )
    folder = parser.parse(argv).to / "torchbus-stubs"
    try:
        write(folder)
    except OSError as error:
        parser.error(f"{folder} can't be written: {error.strerror}; name a folder with --to")
    print(f"written: {folder}")
    return 0


def write(folder: Path) -> None:
    """Write the stub package."""
    names = {
        kind: [name for name, entry in discovery.installed(kind).items() if _is_of_others(entry)]
        for kind in ("strategy", "logger")
    }
    verbs = {
        name: discovery.load(entry)
        for name, entry in discovery.installed("verb").items()
        if _is_of_others(entry)
    }
    options = [one for one in known_options() if one.package not in OURS]
    texts = {
        "py.typed": "partial\n",
        "installed.pyi": stubs.installed_text(options, names, verbs, WRITTEN),
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _is_of_others(entry: EntryPoint) -> bool:
    return discovery.version(entry).partition(" ")[0] not in OURS
