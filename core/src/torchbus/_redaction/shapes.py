"""Takes values apart for JSON."""

from __future__ import annotations

import dataclasses
import math
from argparse import Namespace
from collections.abc import Mapping
from numbers import Integral, Real
from types import SimpleNamespace
from typing import Any


def as_number(value: object) -> int | float | str | None:
    """Return any number as a Python number, and NaN and infinities as text; otherwise None."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else str(float(value))
    return None


def fields_of(value: object) -> Mapping[Any, object] | None:
    """Return the names and values of an object with fields; None for any other.

    Such objects are mappings, namespaces, dataclasses, named tuples, and objects of attrs or
    pydantic.
    """
    if isinstance(value, Mapping):
        return value
    if isinstance(value, type):
        return None
    if isinstance(value, Namespace | SimpleNamespace):
        return vars(value)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=False))
    if hasattr(type(value), "__attrs_attrs__"):
        declared = getattr(type(value), "__attrs_attrs__", ())
        return {field.name: getattr(value, field.name, None) for field in declared}
    if hasattr(type(value), "model_fields"):
        return dict(vars(value))
    return None


def items_of(value: object) -> list[object] | None:
    return list(value) if isinstance(value, list | tuple | set | frozenset) else None


def text_of(value: object) -> str:
    try:
        return cleaned(value)
    except Exception:
        return f"a {type(value).__name__}"


def cleaned(value: object) -> str:
    return str(value)
