"""Calls a function when the script imports a module for the first time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class _Follower(MetaPathFinder):
    """An import hook that delegates to other finders, and calls a function after the import."""

    def __init__(self, calls: Mapping[str, Callable[[], object]]) -> None:
        self._calls = dict(calls)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        call = self._calls.pop(fullname, None)
        spec = None if call is None else find_spec(fullname)
        if spec is not None and spec.loader is not None and call is not None:
            _call_after(spec, call)
        return spec


def _call_after(spec: ModuleSpec, call: Callable[[], object]) -> None:
    loader = spec.loader
    assert loader is not None
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        call()

    loader.exec_module = exec_module  # type: ignore[method-assign]


def follow(calls: Mapping[str, Callable[[], object]]) -> Callable[[], None]:
    """Call each function once the module of its key is imported. Return how to stop that."""
    follower = _Follower(calls)
    sys.meta_path.insert(0, follower)

    def stop() -> None:
        if follower in sys.meta_path:
            sys.meta_path.remove(follower)

    return stop
