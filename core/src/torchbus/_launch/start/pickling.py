"""Pickles arguments, and names the part that can't be pickled.

The name is the path of attributes to that part. For a function, it includes the line that defines
the function.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module

from torchbus.errors import UsageError


def pickled(
    value: tuple[Sequence[object], Mapping[str, object]],
    names: Sequence[str],
    what: str,
    remedy: str,
) -> bytes:
    """Pickle positional and named arguments.

    Raises UsageError, which names the part that can't be pickled, and the remedy.
    """
    try:
        return pickle.dumps(value)
    except Exception as error:
        positional, named = value
        parts = [*zip(names, positional, strict=False), *named.items()]
        for path, part in parts:
            found = _culprit(path, part, set())
            if found is not None:
                raise UsageError(
                    f"{what}: {_describe(*found)}, so it can't be sent to other processes: {remedy}"
                ) from None
        raise UsageError(
            f"{what}: the arguments can't be sent to other processes ({error}): {remedy}"
        ) from error


def place_of(function: Any) -> str:
    """Describe a function by its name, file and line."""
    code = getattr(function, "__code__", None)
    where = (
        f" at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
        if code is not None
        else ""
    )
    if function.__name__ == "<lambda>":
        return f"a lambda defined{where}"
    outer, _, _ = function.__qualname__.rpartition(".<locals>.")
    inside = f" inside {outer.split('.')[-1]}()" if outer else ""
    return f"the function {function.__name__} defined{inside}{where}"


class _Probe(pickle.Pickler):
    """Finds out whether something can be pickled, without reading tensors."""

    def reducer_override(self, value: object) -> Any:
        return (int, ()) if isinstance(value, Tensor) else NotImplemented


def _error(value: object) -> Exception | None:
    try:
        _Probe(io.BytesIO()).dump(value)
    except Exception as error:
        return error
    return None


def _culprit(path: str, value: object, seen: set[int]) -> tuple[str, object, Exception] | None:
    """Return the innermost part that can't be pickled, with its path and the error."""
    error = _error(value)
    if error is None or id(value) in seen:
        return None
    seen.add(id(value))
    for inner_path, inner in _parts(path, value):
        found = _culprit(inner_path, inner, seen)
        if found is not None:
            return found
    return path, value, error


def _parts(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, types.FunctionType | type | types.ModuleType):
        return
    if isinstance(value, functools.partial):
        yield from (
            (f"{path}.func", value.func),
            (f"{path}.args", value.args),
            (f"{path}.keywords", value.keywords),
        )
    if isinstance(value, types.MethodType):
        yield f"{path}.__self__", value.__self__
    if isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{path}[{index}]", item) for index, item in enumerate(value))
    if isinstance(value, Module):
        yield from ((f"{path}.{name}", child) for name, child in value.named_children())
    yield from ((f"{path}.{name}", item) for name, item in getattr(value, "__dict__", {}).items())


def _describe(path: str, value: object, error: Exception) -> str:
    if isinstance(value, types.FunctionType):
        return f"{path} is {place_of(value)}"
    cls = type(value)
    if "<locals>" in cls.__qualname__:
        outer = cls.__qualname__.rpartition(".<locals>.")[0].split(".")[-1]
        return f"{path} is a {cls.__name__}, a class defined inside {outer}()"
    return f"{path} is a {cls.__module__}.{cls.__qualname__} ({error})"
