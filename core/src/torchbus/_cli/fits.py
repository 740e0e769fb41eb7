"""Which installed packages don't fit the installed torchbus, or each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions

REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?:\[.*?\])?\s*\(?(?P<range>[^;)]*)\)?(?P<marker>;.*)?"
)
CLAUSE = re.compile(r"(?P<sign>~=|[=<>!]=|<|>)\s*(?P<number>\d+(?:\.\d+)*)(?P<any>\.\*)?$")
Release = tuple[int, ...]


def misfits() -> list[str]:
    """Return a sentence for each installed package that requires another torchbus or plugin.

    Only requirements of packages of torchbus are read: ``torchbus`` and ``torchbus-...``.
    """
    installed: dict[str, Distribution] = {}
    for one in distributions():
        installed.setdefault(_name(one.metadata["Name"]), one)  # the first is imported
    return [
        sentence
        for name, one in sorted(installed.items())
        for sentence in _misfits(name, one, installed)
    ]


def _misfits(name: str, one: Distribution, installed: dict[str, Distribution]) -> Iterator[str]:
    for line in one.requires or []:
        found = REQUIREMENT.match(line)
        if found is None or found["marker"] is not None:  # of an extra, or of another platform
            continue
        needed, wanted = _name(found["name"]), found["range"].strip()
        if not f"{needed}-".startswith("torchbus-"):
            continue
        there = installed.get(needed)
        if there is None:
            yield f"{name} {one.version} needs {needed}, which is missing: pip install {needed}"
        elif not fits(there.version, wanted):
            yield (
                f"{name} {one.version} needs {needed}{wanted}, and {needed} {there.version} is"
                f" installed: {_remedy(name, needed, wanted, there.version)}"
            )


def _remedy(name: str, needed: str, wanted: str, version: str) -> str:
    """Whichever is older of the two is to be replaced."""
    newest = re.search(r"<\s*([\d.]+)", wanted)
    if newest and _release(version) >= _release(newest[1]):
        return f"pip install --upgrade {name}"
    return f'pip install --upgrade "{needed}{wanted}"'


def fits(version: str, wanted: str) -> bool:
    """Whether a version is in a range such as ``>=0.2,<0.3``. Clauses of another form fit."""
    return all(_fits(_release(version), clause.strip()) for clause in wanted.split(",") if clause)


def _fits(version: Release, clause: str) -> bool:
    found = CLAUSE.match(clause)
    if found is None:
        return True
    sign, number = found["sign"], _release(found["number"])
    begins = version[: len(number)] == number
    if sign == "~=":
        return version >= number and version[: len(number) - 1] == number[:-1]
    if found["any"]:
        return begins == (sign == "==")
    left, right = _padded(version), _padded(number)
    return {
        "==": left == right,
        "!=": left != right,
        "<=": left <= right,
        ">=": left >= right,
        "<": left < right,
        ">": left > right,
    }[sign]


def _padded(release: Release) -> Release:
    return release + (0,) * (6 - len(release))


def _release(version: str) -> Release:
    """Return the numbers of a version, without what follows them, as in "0.2.0rc1"."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _name(written: str) -> str:
    return re.sub(r"[-_.]+", "-", written).lower()
