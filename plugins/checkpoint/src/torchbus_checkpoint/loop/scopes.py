"""Scopes of user code with variables: frames, their modules, and objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType

from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torchbus.compat import python

from torchbus_checkpoint.loop import frames as checkpoint_frames
from torchbus_checkpoint.loop import generators
from torchbus_checkpoint.loop.frames import is_users_class
from torchbus_strategy.script_generators import Generator

OF_TORCH = (Module, Optimizer, LRScheduler, DataLoader)  # their own attributes are in a state_dict


@dataclass
class Scope:
    """A place with variables. ``frame`` is None for modules and objects.

    A loop is about to assign the variables in ``left_out``. Names that start with ``hidden`` are
    not the user's.
    """

    place: str
    values: dict[str, object]
    frame: FrameType | None = None
    left_out: frozenset[str] = frozenset()
    hidden: str = "__"

    def bind(self, values: dict[str, object]) -> None:
        """Assign variables, of the user's names only: the values may be a forged checkpoint's."""
        values = {name: one for name, one in values.items() if not name.startswith(self.hidden)}
        if self.frame is None:
            self.values.update(values)
        else:
            python.assign(self.frame, values)


def scopes(frames: list[FrameType]) -> Iterator[Scope]:
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


def _with_objects(scope: Scope, seen: set[int]) -> Iterator[Scope]:
    yield scope
    for name, value in list(scope.values.items()):
        if (
            is_users_class(type(value))
            and hasattr(value, "__dict__")
            and not isinstance(value, type)
            and id(value) not in seen
        ):
            seen.add(id(value))
            hidden = "_" if isinstance(value, OF_TORCH) else "__"
            yield Scope(f"{scope.place}.{name}", vars(value), hidden=hidden)


def generators_in(frames: list[FrameType]) -> Iterator[tuple[tuple[str, str], object]]:
    """Yield the state of each random generator that a variable names, by place and name."""
    for place, name, generator in _generators(frames):
        yield (place, name), generators.state_of(generator)


def generators_named(frames: list[FrameType]) -> list[Generator]:
    """Return each random generator that a variable names."""
    return [generator for _, _, generator in _generators(frames)]


def put_generators(frames: list[FrameType], states: Mapping[tuple[str, str], object]) -> None:
    """Set the generators that still exist to the states of ``generators_in``."""
    for place, name, generator in _generators(frames):
        if (place, name) in states:
            generators.set_state(generator, states[place, name])


def _generators(frames: list[FrameType]) -> Iterator[tuple[str, str, Generator]]:
    for scope in scopes(frames):
        for name, value in list(scope.values.items()):
            if generators.is_one(value):
                yield scope.place, name, value
