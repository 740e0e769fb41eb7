"""Renders the template of a package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import Template

KINDS = ("listener", "logger", "strategy")
TEMPLATE = Path(__file__).parent / "template"
SUFFIX = ".txt"  # of the template's files, so that no tool takes them for sources


@dataclass(frozen=True)
class Names:
    """What a package calls things. ``name``: of the plugin. ``version``: of torchbus."""

    name: str
    version: str

    @property
    def distribution(self) -> str:
        return f"torchbus-{self.name.replace('_', '-')}"

    @property
    def package(self) -> str:
        return f"torchbus_{self.name}"

    def values(self) -> dict[str, str]:
        """Return what stands in the template, as ``$name`` and others."""
        major, minor = self.version.split(".")[:2]
        return {
            "name": self.name,
            "distribution": self.distribution,
            "package": self.package,
            "class": "".join(part.capitalize() for part in self.name.split("_")),
            "torchbus": f"torchbus>={major}.{minor},<{major}.{int(minor) + 1}",
        }


def write(folder: Path, kind: str, names: Names) -> None:
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
