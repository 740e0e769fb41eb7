"""Replaces functions of torch during a session, and restores them in any order."""

from __future__ import annotations

import functools
import inspect
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any, TypeVar
from weakref import WeakSet

from torchbus.bus.registry import Bus, Listeners

T = TypeVar("T")
MISSING = object()
PUTS_BACK = "torchbus_puts_back"


def replace(
    owner: object, name: str, make: Callable[[Any], object], becomes_inert: bool = False
) -> Callable[[], None]:
    """Set ``owner.name`` to ``make(original)``. Return the function that undoes it.

    The original may be inherited. Replacements by torchbus may be undone in any order. If other
    code has replaced the attribute since, its function stays, and a warning says so. With
    ``becomes_inert``, there is no warning, because ours may stay below the other one: torch.compile
    wraps every optimizer's step when it is first used, and wandb.init sets wandb.log.
    """
    current = original = vars(owner).get(name, MISSING)
    if current is MISSING:
        find = inspect.getattr_static if isinstance(owner, type) else getattr
        original = find(owner, name)
    ours = named(make(original), owner, name, original)
    if ours is original:
        return lambda: None
    vars(ours)[PUTS_BACK] = current

    def undo() -> None:
        now = vars(owner).get(name)
        if now is ours:
            before = vars(ours)[PUTS_BACK]
            delattr(owner, name) if before is MISSING else setattr(owner, name, before)
            return
        if not _elapsed_out(ours, now) and not becomes_inert:
            warnings.warn(
                f"{name} was replaced inside the session and not restored: torchbus does not"
                " change it. Restore it in the block, or replace it before the session",
                stacklevel=2,
            )

    setattr(owner, name, ours)
    return undo


def _elapsed_out(ours: object, top: object) -> bool:
    """Let torchbus's replacement above this one restore this one's original.

    Returns False if there is none, because other code is on top.
    """
    while top is not None and PUTS_BACK in getattr(top, "__dict__", {}):
        below = vars(top)[PUTS_BACK]
        if below is ours:
            vars(top)[PUTS_BACK] = vars(ours)[PUTS_BACK]
            return True
        top = below
    return False


def named(ours: Any, owner: object, name: str, original: Any) -> object:
    """Make our function look like the original, and say where it is found.

    pickle refers to functions by their place. A class does not bind a builtin, so it must not bind
    a builtin's replacement either.
    """
    if ours is original:
        return ours
    functools.update_wrapper(ours, original)
    if not hasattr(original, "__annotations__"):
        ours.__annotations__ = {}
    if isinstance(owner, ModuleType):
        ours.__module__, ours.__qualname__ = owner.__name__, name
    elif isinstance(owner, type):
        ours.__module__, ours.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"
        return ours if hasattr(original, "__get__") else staticmethod(ours)
    return ours


RAISING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Defer signals that arrive inside the block to its end: their handlers may raise anywhere.

    Only the main thread handles signals. Elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hold = _Hold()
    try:
        for number in hold.handlers:
            signal.signal(number, hold)
        yield
    finally:
        hold.release()


class _Hold:
    """A handler that holds signals back for the handlers that it replaces."""

    def __init__(self) -> None:
        found = {number: signal.getsignal(number) for number in RAISING}
        self.handlers = {number: mine for number, mine in found.items() if callable(mine)}
        self._came: list[tuple[int, FrameType | None]] = []
        self._keeps = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._keeps:
            self._came.append((number, frame))
        else:
            self.handlers[signal.Signals(number)](number, frame)

    def release(self) -> None:
        self._keeps = False  # a handler may raise before all are restored
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        for came, frame in self._came:
            self(came, frame)


class EventEmitter:
    """The interface through which a patch emits events.

    Functions and iterators that the script still holds after ``disconnect`` send no more events.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.hook: Any = bus.hook
        self._listeners: WeakSet[Listeners] = WeakSet()

    def listeners(self, event: str) -> Listeners:
        """Return the functions of a hot event in calling order."""
        found = self._bus.listeners(event)
        self._listeners.add(found)
        return found

    def disconnect(self) -> None:
        """Disconnect: send no more events."""
        self.hook = _NullHooks()
        for listeners in self._listeners:
            self._bus.release(listeners)


class _NullHooks:
    """Behaves as if no event had listeners."""

    def __getattr__(self, event: str) -> Callable[..., None]:
        return lambda **arguments: None


@dataclass(frozen=True)
class Patch:
    """A patch of torch: its place, the events that it emits, and how it is installed.

    ``install`` returns the function that removes the patch.
    """

    place: str
    events: tuple[str, ...]
    install: Callable[[EventEmitter], Callable[[], None]]


def emits(
    place: str, *events: str
) -> Callable[[Callable[[EventEmitter], Callable[[], None]]], Patch]:
    """Make the decorated ``install`` function a ``Patch``."""
    return lambda install: Patch(place, events, install)


def subclasses(cls: type[T]) -> list[type[T]]:
    """Return all classes below this one, each once."""

    def below(cls: type[T]) -> Iterator[type[T]]:
        for child in cls.__subclasses__():
            yield child
            yield from below(child)

    return list(dict.fromkeys(below(cls)))
