"""Validates the content of a checkpoint's files: a forged file may have a matching checksum.

A form describes the values that are allowed:

- a type, or a function that raises for a wrong value;
- ``[form]``: a list or tuple of such values;
- ``{"key": form}``: a dict with at least these keys (``"key?"`` may be missing);
- ``{str: form}``: a dict with any names;
- ``(form, form)``: either.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torchbus.plugin import Unsupported, an

from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.loop.values import MAX_ITEMS
from torchbus_checkpoint.loop.variables import KINDS
from torchbus_checkpoint.state.plain import State, decode
from torchbus_strategy.script_generators import set_state


def stream(value: State) -> None:
    """Check that the generators of Python, torch and NumPy accept the state."""
    torch.Generator().set_state(value["torch"])
    random.Random().setstate(value["python"])
    if "numpy" in value and "numpy" in sys.modules:
        set_state(sys.modules["numpy"].random.RandomState(), value["numpy"])


def random_state(value: State) -> None:
    """Check that a random state has the current stream and the common stream."""
    state = decode(value)
    for one in state["streams"].values():
        stream(one)
    _all_str(state["streams"])
    if (
        not {state["current"], "order"} <= state["streams"].keys()
        or type(state.get("clock", 0)) is not int
    ):
        raise ValueError("a stream is missing")


def section(value: tuple[object, object]) -> None:
    loop, epoch = value
    if type(loop) is not int or type(epoch) is not int:
        raise ValueError("not a pair of numbers")


def gap(value: tuple[tuple[object, object], object, object]) -> None:
    """Check that a gap has all parts, or is unknown."""
    at, number, known = value
    section(at)
    if type(number) is not int or not isinstance(known, dict):
        raise ValueError("not a gap")
    if known:
        standing(known["start"])
        _all_str([*known["drawn"], *known["ends"], *known["ends"].values()])


def counted(value: tuple[tuple[object, object], object, dict[object, dict[object, Any]]]) -> None:
    """Check that an entry has the form that ``variables.Numbers`` describes."""
    at, number, places = value
    section(at)
    _all_str([*places, *(name for names in places.values() for name in names)])
    found = [one for names in places.values() for one in names.values()]
    if type(number) is not int or not all(map(_is_number, found)):
        raise ValueError("not numbers")


def _is_number(value: Any) -> bool:
    if type(value) is tuple and len(value) == 2:
        mean, many = value
        is_one = type(mean) in KINDS or (type(mean) is tuple and len(mean) == 3)
        return is_one and _is_number(mean) and type(many) is int and many <= MAX_ITEMS
    if type(value) is tuple:
        dtype, kind, number = value
        return type(dtype) is torch.dtype and type(kind) is str and type(number) in KINDS
    parts = value.values() if type(value) is dict else value if type(value) is list else [value]
    return all(type(one) in KINDS for one in parts)


def standing(value: State) -> None:
    random_state(value["random"])
    named_states(value["own"])


def named_states(value: Iterable[tuple[object, object]]) -> None:
    """Check that the states have the place and name of a variable."""
    for place, name in value:
        _all_str([place, name])


def passes(value: tuple[tuple[object, object], list[object], list[object]]) -> None:
    at, over, before = value
    section(at)
    _all_str(over)
    if len(over) != len(before) or any(type(one) is not bool for one in before):
        raise ValueError("not passes")


def pair(value: tuple[object, State]) -> None:
    """Check that an entry has the signature of a loader, and the states of its generators."""
    over, states = value
    _all_str([over, *states])
    decode(states)


def _all_str(values: Iterable[object]) -> None:
    if not all(isinstance(one, str) for one in values):
        raise ValueError("not text")


def plain(value: object) -> None:
    """Check that ``decode`` accepts the value."""
    decode(value)


MODEL = {
    "name": str,
    "class": str,
    "training": [bool],
    "requires_grad": [bool],
    "hidden": {str: Tensor},
}
STATE = {"name": str, "class": str, "state": plain}
OPTIMIZER = {
    **STATE,
    "shapes": [[[int]]],
    "gradients": (type(None), [(type(None), Tensor)]),
    "built?": [{str: plain}],
}
COMMON = {
    "trained": [MODEL],
    "other": [MODEL],
    "loose": [Tensor],
    "schedulers": [STATE],
    "scalers": [STATE],
    "registered": {str: plain},
}
WHOLE = {**COMMON, "optimizers": [OPTIMIZER], "weights": [str]}
IN_PARTS = {**COMMON, "optimizers": [object], "groups": [str], "models": [dict]}
LOADER_STATE = {"random": random_state, "generators": {str: plain}}
OPEN = {
    "section": section,
    "ordinal": int,
    "started": LOADER_STATE,
    "wanted": (type(None), LOADER_STATE),
    "own?": named_states,
    "taken": int,
    "last?": bool,
    "samples?": {"chosen": str, "held": str},
}
POSITION = {
    "born": {str: (type(None), LOADER_STATE)},
    "variables": {str: {str: plain}},
    "counters": {str: (bool, int, str, float)},
    "heads": {str: int},
    "reader": str,
    "section": section,
    "sections": [passes],
    "gaps?": [gap],
    "counted?": [counted],
    "gap?": (type(None), standing),
    "saves?": int,
    "open": [OPEN],
    "loaders": [pair],
    "random": random_state,
    "loop_ends": [[(type(None), int)]],
    "ended": bool,
    "left?": bool,
}
WEIGHTS = {str: object}
RANK = {
    "position": POSITION,
    "plugins": {str: plain},
    "steps": int,
    "made?": [int],
    "in_step?": [bool],
    "since?": int,
    "epochs": int,
    "metric": (type(None), int, float),
}


Form = Any
LONGEST = 300


class _Unlike(Exception):
    """The value does not have the form. The message names the place in the value."""


def refuse_unlike(checkpoint: Path, name: str, content: object, form: Form) -> None:
    """Raise CheckpointError, which names the place in the file, if the content has another form."""
    with as_written(checkpoint, name):
        _compare(content, form, "")


@contextmanager
def as_written(checkpoint: Path, name: str) -> Iterator[None]:
    """Turn every error inside into a CheckpointError, because the file's content is the cause.

    Unsupported is raised as it is: a plugin that loads its state has a better message.
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
    """Return the form for this type of value. If none fits, return the last form."""
    return next((form for form in forms if type(value) in _kinds(form)), forms[-1])


def _kinds(form: Form) -> tuple[type, ...]:
    if isinstance(form, list):
        return (list, tuple)
    if isinstance(form, dict):
        return (dict,)
    return (form,) if isinstance(form, type) else ()


def _expect(value: object, kinds: tuple[type, ...], at: str) -> None:
    """Raise if the value has another type. A bool does not count as an int."""
    fits = isinstance(value, kinds) and (type(value) is not bool or bool in kinds)
    if not fits:
        raise _Unlike(f"{at or 'it'} is {an(type(value).__name__)}, not {an(kinds[0].__name__)}")


def _try(value: object, form: Callable[[object], object], at: str) -> None:
    try:
        form(value)
    except Exception as error:
        raise _Unlike(f"{at}: {type(error).__name__}: {error}"[:LONGEST]) from error
