"""The places of a checkout that say its version.

The version of all packages is in ``core/src/torchbus/__init__.py``, from where each takes it.
"""

from __future__ import annotations

import datetime
import re
from pathlib import Path

VERSION = "core/src/torchbus/__init__.py"
CHANGES = "CHANGELOG.md"
CITATION = "CITATION.cff"
STANDS = re.compile(r'^__version__ = "(.+)"$', re.M)
PIN = re.compile(r"\b(torchbus[\w-]*)>=\d+\.\d+,<\d+\.\d+")
HEADING = re.compile(r"^## (\S+) \((.+)\)$", re.M)
UNRELEASED = "unreleased"


class Refused(Exception):
    """A release can't be made; the text says why, and what to do."""


def packages(root: Path) -> list[Path]:
    """The folders of all packages, the core first."""
    groups = ("plugins", "contrib")
    found = [path for group in groups for path in sorted(root.glob(f"{group}/*/pyproject.toml"))]
    return [root / "core", *(path.parent for path in found)]


def torch_of(package: Path) -> list[int]:
    """The numbers of the oldest torch that a package declares; [] if it leaves that to the core."""
    text = (package / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'"torch>=([\d.]+)', text)
    return numbers(found[1]) if found else []


def numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def version(root: Path) -> str:
    """The version of the checkout."""
    found = STANDS.search((root / VERSION).read_text(encoding="utf-8"))
    if found is None:
        raise Refused(f'{VERSION} has no line __version__ = "..."')
    return found[1]


def date(root: Path) -> datetime.date:
    """When the version was released, by the changelog: all dates in the files of a release."""
    text = (root / CHANGES).read_text(encoding="utf-8")
    dates = {found[1]: found[2] for found in HEADING.finditer(text)}
    try:
        return datetime.date.fromisoformat(dates.get(version(root), ""))
    except ValueError:
        return datetime.date(2026, 1, 1)  # not released yet: any date, but always the same one


def notes(root: Path) -> str:
    """The changelog's words on the version."""
    _, _, rest = (root / CHANGES).read_text(encoding="utf-8").partition(f"\n## {version(root)} ")
    return re.split(r"^## ", rest.partition("\n")[2], maxsplit=1, flags=re.M)[0].strip()


def pin(number: str) -> str:
    """The versions that fit to one: those with the same minor version."""
    major, minor = number.split(".")[:2]
    return f">={major}.{minor},<{major}.{int(minor) + 1}"


def write(root: Path, number: str, day: datetime.date) -> None:
    """Make the checkout one of this version, released on this day."""
    _refuse_strange(root, number)
    _replace(root / VERSION, STANDS, f'__version__ = "{number}"')
    for path in [root / "pyproject.toml", *(one / "pyproject.toml" for one in packages(root))]:
        _replace(path, PIN, rf"\g<1>{pin(number)}")
    _replace(
        root / CHANGES, re.compile(rf"^## \S+ \({UNRELEASED}\)$", re.M), f"## {number} ({day})"
    )
    _replace(root / CITATION, re.compile(r"^version: .*$", re.M), f"version: {number}")
    _replace(root / CITATION, re.compile(r"^date-released: .*$", re.M), f"date-released: {day}")


def _refuse_strange(root: Path, number: str) -> None:
    now = version(root)
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", number):
        raise Refused(f"{number!r} is not a version: write three numbers, such as 0.2.0")
    if _order(number) < _order(now):
        raise Refused(f"{number} is older than {now}, the version of this checkout")
    headings = dict(HEADING.findall((root / CHANGES).read_text(encoding="utf-8")))
    if number in headings and headings[number] != UNRELEASED:
        raise Refused(f"{CHANGES} says that {number} was released on {headings[number]}")
    if UNRELEASED not in headings.values():
        raise Refused(
            f"{CHANGES} has no section '## {number} ({UNRELEASED})': say there what is new"
        )


def _order(number: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", number)[:3])


def _replace(path: Path, pattern: re.Pattern[str], by: str) -> None:
    path.write_text(pattern.sub(by, path.read_text(encoding="utf-8")), encoding="utf-8")
