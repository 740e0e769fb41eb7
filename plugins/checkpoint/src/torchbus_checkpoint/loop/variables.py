"""The loop's own variables: ``best``, ``history``, ``running_loss``, ``self.num_steps``.

A checkpoint contains numbers, strings, small tensors, random generators, ``itertools.count``, and
lists, tuples, namedtuples, sets and dicts of them. They are variables of the frames of the user's
code and of their modules, and attributes of objects of the user's classes and of torchmetrics. Only
variables that have changed since the first pass over a loader began are saved, so a constant that
is edited between two runs has its new value.
"""

from __future__ import annotations

import contextlib
import csv
import gc
import io
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any, cast

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset
from torchbus.compat import python
from torchbus.plugin import UsageError, warn

from torchbus_checkpoint._compat import UPDATE_COUNT, VALUE
from torchbus_checkpoint.loop import frames as checkpoint_frames
from torchbus_checkpoint.loop import generators
from torchbus_checkpoint.loop.frames import is_users_class
from torchbus_checkpoint.loop.values import DICTS, MAX_ITEMS, is_data, restored, same, to_save
from torchbus_checkpoint.state.plain import copied, is_part, on_device
from torchbus_strategy.batches import collect
from torchbus_strategy.script_generators import Generator

DEPTH, MAX_OBJECTS = 3, 64
OF_TORCH = (Module, Optimizer, LRScheduler, DataLoader)  # torch's attributes are in a state_dict
OF_OPTIMIZERS = frozenset(("state", "param_groups", "defaults"))


@dataclass
class Scope:
    """A place with variables. ``frame`` is None for modules and objects.

    A loop is about to assign the variables in ``left_out``. Names that start with ``hidden`` are
    not the user's, except those in ``shown``; neither are those in ``of_torch``. ``is_cache`` is
    True for a data set.
    """

    place: str
    values: dict[str, object]
    frame: FrameType | None = None
    left_out: frozenset[str] = frozenset()
    hidden: str = "__"
    shown: frozenset[str] = frozenset()
    of_torch: frozenset[str] = frozenset()
    is_cache: bool = False

    def has(self, name: str) -> bool:
        """Whether a name is the user's."""
        if name in self.of_torch:
            return False
        return name in self.shown or not name.startswith(self.hidden)

    def restore(self, saved: dict[str, object]) -> None:
        """Give variables their saved values, which may come from a forged checkpoint.

        So this sets only the user's names, and only if the variable is new or its present value is
        data. It never replaces a module, function, class or other object.
        """
        values = {
            name: restored(self.values.get(name), one)
            for name, one in saved.items()
            if self.has(name) and is_data(self.values.get(name))
        }
        if self.frame is None:
            self.values.update(values)
        else:
            python.assign(self.frame, values)


def scopes_of(frames: list[FrameType]) -> Iterator[Scope]:
    """Yield the frames, outermost first, their modules, and the user's objects that they name."""
    seen: set[int] = set()
    for index, frame in enumerate(frames):
        is_module = not python.is_function(frame) and frame.f_locals is frame.f_globals
        left_out = frozenset(checkpoint_frames.head_names(frame))
        if id(frame.f_globals) not in seen:
            seen.add(id(frame.f_globals))
            module = f"module {frame.f_globals.get('__name__')}"
            names = left_out if is_module else frozenset[str]()
            yield from _with_objects(Scope(module, frame.f_globals, None, names), seen)
        if not is_module:
            place, values = checkpoint_frames.place(frames, index), python.read(frame)
            yield from _with_objects(Scope(place, values, frame, left_out), seen)


def _with_objects(scope: Scope, seen: set[int], depth: int = DEPTH) -> Iterator[Scope]:
    """Yield a scope, then the user's objects in its variables, their attributes and items."""
    yield scope
    for name, value in list(scope.values.items()) if depth else ():
        for path, thing in _parts(name, value):
            if (
                (is_users_class(type(thing)) or is_metric(thing))
                and hasattr(thing, "__dict__")
                and not isinstance(thing, type)
                and id(thing) not in seen
            ):
                seen.add(id(thing))
                hidden = "_" if isinstance(thing, OF_TORCH) else "__"
                shown = frozenset([UPDATE_COUNT, VALUE] if is_metric(thing) else ())
                theirs = OF_OPTIMIZERS if isinstance(thing, Optimizer) else frozenset()
                place = f"{scope.place}.{path}"
                inner = Scope(
                    place,
                    vars(thing),
                    hidden=hidden,
                    shown=shown,
                    of_torch=theirs,
                    is_cache=isinstance(thing, Dataset),
                )
                yield from _with_objects(inner, seen, depth - 1)


def is_metric(thing: object) -> bool:
    """Whether an object is a metric or collection of torchmetrics: its ``state_dict`` is empty."""
    return isinstance(thing, Module) and hasattr(type(thing), "metric_state")


def _parts(name: str, value: object) -> list[tuple[str, object]]:
    if isinstance(value, list | tuple) and len(value) <= MAX_OBJECTS:
        return [(f"{name}[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, dict) and len(value) <= MAX_OBJECTS:
        return [(f"{name}[{key!r}]", item) for key, item in list(value.items())]
    return [(name, value)]


def flush_files(frames: list[FrameType]) -> None:
    """Flush stdout and the open files that variables name.

    A kill would lose their buffers, and a resumed run does not write this text again.
    """
    for file in (*written_files(frames), sys.stdout):
        with contextlib.suppress(OSError, ValueError):  # the script's next write raises it again
            file.flush()


def written_files(frames: list[FrameType]) -> list[IO[Any]]:
    """Return the files open for writing that variables name."""
    files = [one for scope in scopes_of(frames) for one in map(_file_of, scope.values.values())]
    return [
        cast("IO[Any]", file)
        for file in files
        if isinstance(file, io.IOBase) and not file.closed and file.writable()
    ]


def _file_of(value: object) -> object:
    """Return the file of a csv writer. Any other value is returned as it is."""
    writer = value.writer if isinstance(value, csv.DictWriter) else value
    if not isinstance(writer, CSV_WRITER):
        return writer
    parts = [getattr(one, "__self__", None) for one in gc.get_referents(writer)]
    return next((one for one in parts if isinstance(one, io.IOBase)), None)


CSV_WRITER = type(csv.writer(io.StringIO()))


def generators_in(frames: list[FrameType]) -> Iterator[tuple[tuple[str, str], object]]:
    """Yield the state of each random generator that a variable names, by place and name."""
    for place, name, generator in _generators(frames):
        yield (place, name), generators.state_of(generator)


def generators_named(frames: list[FrameType]) -> list[Generator]:
    """Return each random generator that a variable names."""
    return [generator for _, _, generator in _generators(frames)]


def put_generators(frames: list[FrameType], states: Mapping[tuple[str, str], object]) -> None:
    """Restore the states of ``generators_in`` in the generators that exist."""
    for place, name, generator in _generators(frames):
        if (place, name) in states:
            generators.set_state(generator, states[place, name])


def _generators(frames: list[FrameType]) -> Iterator[tuple[str, str, Generator]]:
    for scope in scopes_of(frames):
        for name, value in list(scope.values.items()):
            if generators.is_one(value):
                yield scope.place, name, value


Saved = dict[str, dict[str, object]]
Numbers = dict[str, dict[str, Any]]
"""Numbers, lists and dicts of numbers, and scalar tensors, by place and name.

A scalar tensor is represented as (dtype, device type, number). A list of scalar tensors, or of more
than ``MAX_NUMBERS`` numbers, is represented as (mean, count): it is restored as ``count`` times the
mean, which may be such a triple.
"""

KINDS, MAX_NUMBERS = (bool, int, float), 100


def numbers(frames: list[FrameType]) -> Numbers:
    """Return the variables that are numbers, scalar tensors, or lists or dicts of numbers."""
    return {
        scope.place: {
            name: number
            for name, value in list(scope.values.items())
            if scope.has(name) and (number := _number(value)) is not None
        }
        for scope in scopes_of(frames)
    }


def _number(value: Any) -> object:
    if type(value) in KINDS:
        return value
    if isinstance(value, float):  # NumPy's float64
        return float(value)
    if isinstance(value, Tensor):
        is_one = value.dim() == 0 and not is_part(value)
        return (value.dtype, value.device.type, value.item()) if is_one else None
    if type(value) not in (list, *DICTS) or len(value) > MAX_ITEMS:
        return None
    parts = list(value.values() if isinstance(value, dict) else value)
    if set(map(type, parts)) <= set(KINDS):
        return _of_numbers(value, parts)
    kinds = {(one.dtype, one.device) if _is_scalar(one) else None for one in parts}
    if type(value) is list and len(kinds) == 1 and None not in kinds:
        mean = torch.stack(parts).detach().double().mean()
        return _number(mean.to(parts[0].dtype)), len(parts)
    return None


def _is_scalar(value: object) -> bool:
    return type(value) is Tensor and not value.dim()


def _of_numbers(value: Any, parts: list[Any]) -> object:
    if isinstance(value, dict):
        is_plain = len(parts) <= MAX_NUMBERS and {*map(type, value)} <= {str, *KINDS}
        return dict(zip(value, parts, strict=True)) if is_plain else None
    return parts if len(parts) <= MAX_NUMBERS else (sum(parts) / len(parts), len(parts))


def changed(before: Numbers, now: Numbers) -> Numbers:
    """Return the numbers that differ from ``before``, or are new."""
    found = {
        place: {
            name: value
            for name, value in values.items()
            if name not in before.get(place, {}) or not same(value, before[place][name])
        }
        for place, values in now.items()
    }
    return {place: values for place, values in found.items() if values}


def count(frames: list[FrameType], counted: Numbers) -> None:
    """Give the variables these numbers. Lists, dicts and tensors are changed in place."""
    for scope in scopes_of(frames):
        here = counted.get(scope.place, {})
        scope.restore({name: _value_of(value) for name, value in here.items()})


def _value_of(number: Any) -> object:
    if type(number) is not tuple:
        return number
    if len(number) == 2:
        mean, many = number
        return [_value_of(mean)] * many
    dtype, kind, value = number
    return on_device(torch.tensor(value, dtype=dtype), kind)


LOST = (
    "the loop extends {!r}, and a checkpoint can't hold what is in it ({}), or not that much, so a"
    " resumed run does not restore it. Put in at most {} numbers, texts or small tensors, or write"
    " the rest to a file"
)


class ExtendedLists:
    """Finds the user's lists and deques that grow, and that a checkpoint can't hold.

    A list that each epoch fills again begins empty. So between epochs, only a list counts that had
    items and has more now.
    """

    def __init__(self) -> None:
        self._lengths: dict[tuple[str, str], int] = {}
        self._grown: set[tuple[str, str]] = set()
        self._has_warned = False

    def measure(self, frames: list[FrameType]) -> None:
        """Compare the lists with the last call. Called when an epoch, or a pass, begins."""
        self._lengths = self._compare(frames, at_least=1)

    def _compare(self, frames: list[FrameType], at_least: int) -> dict[tuple[str, str], int]:
        lengths = _lengths(scopes_of(frames))
        for key, count in lengths.items():
            if count > self._lengths.get(key, count) >= at_least:
                self._grown.add(key)
        return lengths

    def warn_of_lost(self, frames: list[FrameType]) -> None:
        """Warn once of such a list, when a checkpoint is written."""
        self._compare(frames, at_least=0)
        for scope in scopes_of(frames) if self._grown and not self._has_warned else ():
            for name in scope.values.keys() - _saveable(scope).keys():
                value, has_grown = scope.values[name], (scope.place, name) in self._grown
                last = list(value)[-1:] if has_grown and isinstance(value, list | deque) else []
                for item in filter(_is_result, last):
                    self._has_warned = True
                    return warn(LOST.format(name, type(item).__name__, MAX_ITEMS))
        return None


class Variables:
    """Remembers the first value of each variable."""

    def __init__(self) -> None:
        self._first: Saved = {}

    def look(self, frames: list[FrameType]) -> None:
        """Record variables not seen yet. Called when a pass over a loader or an epoch begins."""
        for scope in scopes_of(frames):
            if scope.place not in self._first:
                self._first[scope.place] = copied(_saveable(scope))

    def changed(self, frames: list[FrameType], fetched: list[Tensor]) -> Saved:
        """Return the variables that differ from their first value, by place. All places are there.

        Variables that hold a batch in ``fetched`` are left out: a wrapper will fetch it again.
        """
        ahead = set(map(id, fetched))
        return {
            scope.place: {
                name: value
                for name, value in self._changes(scope).items()
                if not (ahead and _holds(scope.values[name], ahead))
            }
            for scope in scopes_of(frames)
        }

    def put_back(self, frames: list[FrameType], saved: Saved) -> None:
        """Give the variables their saved values.

        A variable that has changed in this run but had not in the saved run gets its first value,
        unless the saved run had left its function.
        """
        for scope in (scope for scope in scopes_of(frames) if scope.place in saved):
            first = self._first.get(scope.place, {})
            again = {name: first[name] for name in self._changes(scope) if name in first}
            scope.restore(again | saved[scope.place])

    @staticmethod
    def fill(frames: list[FrameType], saved: Saved) -> None:
        """Give saved values to the variables that do not exist yet, or are None.

        A skipped pass would have assigned them, and the loop may print them. A None that becomes a
        number stays, since ``count`` knows the number after each pass.
        """
        for scope in scopes_of(frames):
            here = saved.get(scope.place, {})
            absent = {name: copied(here[name]) for name in here.keys() - scope.values.keys()}
            empty = [name for name in here if scope.values.get(name, 0) is None]
            absent |= {one: copied(here[one]) for one in empty if _number(here[one]) is None}
            scope.restore(absent)

    def _changes(self, scope: Scope) -> dict[str, object]:
        first = self._first.get(scope.place, {})
        return {
            name: value
            for name, value in _saveable(scope).items()
            if name not in first or not same(value, first[name])
        }


def _saveable(scope: Scope) -> dict[str, object]:
    """Return the values that can be saved.

    Variables that a loop is about to assign are included only if they are integers.
    """
    found = {}
    for name, value in list(scope.values.items()):
        if scope.has(name) and (name not in scope.left_out or type(value) is int):
            try:
                found[name] = to_save(value)
            except UsageError:
                continue
    return found


def _is_result(item: object) -> bool:
    """Whether a loop may collect such items as results. A socket or a thread is none."""
    module = type(item).__module__.partition(".")[0]
    is_value = is_users_class(type(item)) or module in ("builtins", "numpy", "pandas", "torch")
    return is_value and not callable(item) and not isinstance(item, OF_TORCH)


def _lengths(scopes: Iterable[Scope]) -> dict[tuple[str, str], int]:
    """Return the lengths of the user's lists and deques, by place and name.

    Those in objects of torch are left out, and those in data sets, which can be filled again.
    """
    return {
        (scope.place, name): len(value)
        for scope in scopes
        if scope.hidden != "_" and not scope.is_cache
        for name, value in list(scope.values.items())
        if isinstance(value, list | deque) and scope.has(name) and name not in scope.left_out
    }


def _holds(value: object, tensors: set[int]) -> bool:
    found: list[Tensor] = []
    collect(list(value) if isinstance(value, deque) else value, found)
    return any(id(tensor) in tensors for tensor in found)
