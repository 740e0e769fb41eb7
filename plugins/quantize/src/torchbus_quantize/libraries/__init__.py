"""Chooses and imports the library that quantises weights: torchao or bitsandbytes."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, Protocol, cast

from torch import Tensor
from torchbus.plugin import UsageError


class Library(Protocol):
    """The interface of the modules in this folder."""

    def why_not(self, name: str, weight: Tensor) -> str:
        """Return why this weight can't be quantised, or ""."""

    def quantise(self, name: str, weight: Tensor) -> tuple[dict[str, Tensor], Any]:
        """Return the tensors that replace the weight, and the settings that are not tensors."""

    def dequantise(self, tensors: Mapping[str, Tensor], settings: Any) -> Tensor:
        """Return the weight with rounded values, in its original shape and dtype."""


class Release(NamedTuple):
    """A library, its oldest supported release, and its module here."""

    name: str
    oldest: tuple[int, int]
    module: str

    @property
    def pip(self) -> str:
        return f"pip install '{self.name}>={'.'.join(map(str, self.oldest))}'"


LIBRARIES = {
    "torchao": Release("torchao", (0, 18), "torchbus_quantize.libraries.by_torchao"),
    "bitsandbytes": Release("bitsandbytes", (0, 46), "torchbus_quantize.libraries.by_bitsandbytes"),
}


def choose(library: str, quantize: str) -> str:
    """Return the library to use; "auto" is the first one that is installed.

    Raises UsageError if it is missing or too old. Imports nothing.
    """
    if library == "auto":
        there = [name for name in LIBRARIES if _installed(name)]
        if not there:
            raise UsageError(
                f"quantize={quantize!r} needs torchao or bitsandbytes, and neither is installed:"
                f" {LIBRARIES['torchao'].pip}"
            )
        library = next((name for name in there if _is_new_enough(name)), there[0])
    release, found = LIBRARIES[library], _installed(library)
    if not found:
        raise UsageError(
            f"quantize_library={library!r} needs {library}, which is not installed: {release.pip}"
        )
    if not _is_new_enough(library):
        raise UsageError(
            f"quantize={quantize!r} needs {library} {'.'.join(map(str, release.oldest))} or later,"
            f" and {found} is installed: {release.pip}"
        )
    return library


def load(library: str) -> Library:
    """Import a library, which takes seconds the first time. Warnings of its import are hidden."""
    name = LIBRARIES[library].module
    if name in sys.modules:
        return cast(Library, sys.modules[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cast(Library, importlib.import_module(name))


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _is_new_enough(name: str) -> bool:
    numbers = _installed(name).split("+")[0].split(".")[:2]
    return tuple(map(int, numbers)) >= LIBRARIES[name].oldest
