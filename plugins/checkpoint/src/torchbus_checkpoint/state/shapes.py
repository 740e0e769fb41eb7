"""Validates the content of a checkpoint's files: a forged file may have a matching checksum.

A form describes the values that are allowed:

- a type, or a function that raises for a wrong value;
- ``[form]``: a list or tuple of such values;
- ``{"key": form}``: a dict with at least these keys (``"key?"`` may be missing);
- ``{str: form}``: a dict with any names;
- ``(form, form)``: either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

from torchbus.plugin import Unsupported

from torchbus_checkpoint.errors import CheckpointError

Form = Any
LONGEST = 300


class _Unlike(Exception):
    """The message says where in the value the fault is."""


def refuse_unlike(checkpoint: Path, name: str, content: object, form: Form) -> None:
    """Raise CheckpointError, which names the place in the file, if the content has another form."""
    with as_written(checkpoint, name):
        _compare(content, form, "")


@contextmanager
def as_written(checkpoint: Path, name: str) -> Iterator[None]:
    """Turn every error inside into a CheckpointError: the file's content is to blame.

    But for Unsupported: a plugin that reads its state there knows what it refuses.
    """
    try:
        yield
    except (CheckpointError, Unsupported):
        raise
    except _Unlike as error:
        raise CheckpointError(
            f"checkpoint {checkpoint}: torchbus did not write this {name} file: {error}"
        ) from None
    except Exception as error:
        message = f"{type(error).__name__}: {error}"[:LONGEST]
        raise CheckpointError(
            f"checkpoint {checkpoint}: torchbus did not write this {name} file: {message}"
        ) from error


def _compare(value: Any, form: Form, at: str) -> None:
    if isinstance(form, tuple):
        _compare(value, _chosen(value, form), at)
    elif isinstance(form, FunctionType):
        _try(value, form, at)
    elif isinstance(form, list):
        _expect(value, (list, tuple), at)
        for index, item in enumerate(value):
            _compare(item, form[0], f"{at}[{index}]")
    elif isinstance(form, dict):
        _expect(value, (dict,), at)
        _compare_items(value, form, at)
    elif form is not object:
        _expect(value, (form,), at)


def _compare_items(value: dict[object, object], form: dict[Any, Form], at: str) -> None:
    if str in form:
        for key, item in value.items():
            _expect(key, (str,), f"a key in {at or 'it'}")
            _compare(item, form[str], f"{at}[{key!r}]")
        return
    for key, inner in form.items():
        name = key.removesuffix("?")
        if name in value:
            _compare(value[name], inner, f"{at}[{name!r}]")
        elif name == key:
            raise _Unlike(f"{at or 'it'} has no {name!r}")


def _chosen(value: object, forms: tuple[Form, ...]) -> Form:
    """Return the form for this type of value, or the last one, which then does not fit."""
    return next((form for form in forms if type(value) in _kinds(form)), forms[-1])


def _kinds(form: Form) -> tuple[type, ...]:
    return (
        (list, tuple)
        if isinstance(form, list)
        else (dict,)
        if isinstance(form, dict)
        else (form,)
        if isinstance(form, type)
        else ()
    )


def _expect(value: object, kinds: tuple[type, ...], at: str) -> None:
    """Raise if the value has another type. A bool does not count as an int."""
    fits = isinstance(value, kinds) and (type(value) is not bool or bool in kinds)
    if not fits:
        raise _Unlike(f"{at or 'it'} is a {type(value).__name__}, not a {kinds[0].__name__}")


def _try(value: object, form: Callable[[object], object], at: str) -> None:
    try:
        form(value)
    except Exception as error:
        raise _Unlike(f"{at}: {type(error).__name__}: {error}"[:LONGEST]) from error
