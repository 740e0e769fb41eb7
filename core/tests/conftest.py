"""Fixtures of the core's tests."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torchbus.bus import discovery

import torchbus_testing as testing

Install = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_companion(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another test has imported brings no plugin along."""
    for entry in discovery.every("companion"):
        monkeypatch.delitem(sys.modules, entry.name, raising=False)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a small distribution of one module, as a third party would publish it; returns its
    folder.

    ``install("torchbus-x", source, plugin={"x": "X"}, option={"speed": "X"})``: the entry points of
    each kind.
    """
    folder = tmp_path / "site"
    modules: list[str] = []

    def install(name: str, source: str, **kinds: dict[str, str]) -> Path:
        module = name.replace("-", "_")
        modules.append(module)
        information = folder / f"{module}-1.2.dist-info"
        information.mkdir(parents=True)
        testing.write_script(folder, source, f"{module}.py")
        (information / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n"
        )
        (information / "RECORD").write_text(f"{module}.py,,\n")
        lines = []
        for kind, entries in kinds.items():
            lines.append("[torchbus]" if kind == "plugin" else f"[torchbus.{kind}]")
            lines += [f"{entry} = {module}:{attribute}" for entry, attribute in entries.items()]
        (information / "entry_points.txt").write_text("\n".join(lines) + "\n")
        monkeypatch.syspath_prepend(folder)
        discovery.offers.cache_clear()
        return folder

    yield install
    for module in modules:
        sys.modules.pop(module, None)
    discovery.offers.cache_clear()


@pytest.fixture
def heard():
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        yield record
