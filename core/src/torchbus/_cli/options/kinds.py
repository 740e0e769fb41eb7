"""Writes a type as a checker reads it, with the modules that its text needs."""

from __future__ import annotations

import inspect
import json
import sys
import types
import typing
from collections.abc import Callable
from typing import Any


def text(annotation: object, modules: set[str]) -> str:
    """Return the text of a type; add the modules that it names. What can't be written is Any."""
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is Ellipsis:
        return "..."
    if isinstance(annotation, list):  # of the arguments of a Callable
        return f"[{_listed(annotation, modules)}]"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        there = [one for one in arguments if one is not typing.NoReturn]
        return " | ".join(text(one, modules) for one in there)
    if origin is typing.Literal:
        modules.add("typing")
        return f"typing.Literal[{', '.join(map(json.dumps, arguments))}]"
    if origin is not None:
        return f"{_name(origin, modules)}[{_listed(arguments, modules)}]"
    return _name(annotation, modules)


def _listed(annotations: typing.Iterable[object], modules: set[str]) -> str:
    return ", ".join(text(one, modules) for one in annotations)


def _name(kind: object, modules: set[str]) -> str:
    module, name = getattr(kind, "__module__", ""), getattr(kind, "__qualname__", "")
    if module == "builtins":
        return str(name)
    public = _public(module, name, kind)
    if not public:
        module, name = "typing", "Any"
    modules.add(public or module)
    return f"{public or module}.{name}"


def _public(module: str, name: str, kind: object) -> str:
    """Return the outermost package that has the class under its own name, or ""."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        owner = ".".join(parts[:count])
        if isinstance(kind, type) and getattr(sys.modules.get(owner), name, None) is kind:
            return owner
    return ""


def of_parameter(function: Callable[..., object], parameter: inspect.Parameter) -> object:
    """Return a parameter's type. ``typing.Any`` if it has none, or names what is not imported."""
    written = parameter.annotation
    if written is inspect.Parameter.empty:
        return Any
    if not isinstance(written, str):
        return written
    body = inspect.unwrap(function)
    try:
        return eval(written, dict(vars(sys.modules[body.__module__])))
    except (NameError, AttributeError, TypeError):
        return Any
