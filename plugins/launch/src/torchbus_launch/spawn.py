"""``spawn``: ranks as new processes that call a decorated function with pickled arguments."""

from __future__ import annotations

import functools
import io
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import spawn
from typing import Any

from torch import Tensor
from torch.nn import Module
from torchbus import bootstrap
from torchbus.errors import UsageError, an

from torchbus_launch.children import standard_input
from torchbus_launch.job import Job
from torchbus_launch.joining import find_nodes
from torchbus_launch.relaunch import start_child, wait_until_joined
from torchbus_launch.request import LaunchRequest


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
        return f"{path} is {an(cls.__name__)}, a class defined inside {outer}()"
    return f"{path} is {an(f'{cls.__module__}.{cls.__qualname__}')} ({error})"


BOOT = (
    "import pickle, sys; sys.path[:], given = pickle.load(sys.stdin.buffer); from"
    " torchbus_launch.spawn import make_call; make_call(given)"
)
REMEDY = (
    "define it with `def` at the top level of a module, or use launch='fork', which pickles nothing"
)


@dataclass(frozen=True)
class DecoratedCall:
    """A call of a decorated function.

    ``decorated`` is the function that the caller sees, and ``function`` the undecorated one.
    ``session`` has the arguments of the decorator.
    """

    decorated: Callable[..., object]
    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    session: tuple[tuple[object, ...], dict[str, object]]


def start(request: LaunchRequest, call: DecoratedCall | None) -> Job:
    """Start the other local ranks, and return this rank's job.

    This process is local rank 0 of its node and makes the call itself. So changes to the arguments
    remain, and the caller gets the return value. Raises UsageError, before any rank starts, if
    something can't be sent to the others.
    """
    if call is None:
        raise UsageError(
            "launch='spawn' runs a function in new processes, and there is none here: decorate one,"
            " @session(strategy='ddp_spawn', ...), and call it; for a with block use launch='fork'"
            " or 'script'"
        )
    payload = _payload(call)
    nodes = find_nodes(request)
    store = nodes.open_store(request)
    argv = bootstrap.command(BOOT)
    children = [
        start_child(argv, nodes, store, local_rank, request, payload)
        for local_rank in range(1, nodes.local_world_size)
    ]
    world = nodes.world(0, request, store, "spawn")
    wait_until_joined(store, world, children)
    return Job(world, request, children=children)


def _payload(call: DecoratedCall) -> bytes:
    """Pickle the import path, the main module, the function's name and its arguments."""
    named = (
        find(call.function.__module__, call.function.__qualname__)
        if _importable(call.function)
        else None
    )
    if named is not call.decorated and named is not call.function:
        raise UsageError(
            f"launch='spawn': {place_of(call.function)} can't be found by its name in another"
            f" process: {REMEDY}"
        )
    preparation = {
        key: value
        for key, value in spawn.get_preparation_data("torchbus rank").items()
        if key != "authkey"
    }
    ours = (
        None
        if named is call.decorated
        else pickled(call.session, ("session(...)",), "launch='spawn'", REMEDY)
    )
    sent = pickled((call.args, call.kwargs), _names(call), "launch='spawn'", REMEDY)
    given = (preparation, call.function.__module__, call.function.__qualname__, ours, sent)
    return pickle.dumps((sys.path, pickle.dumps(given)))


def make_call(given: bytes) -> None:
    """In a new process: import the parent's main module, as multiprocessing does, and make the call
    of ``_payload``. Its session takes this rank's place.
    """
    from torchbus.session import Session

    os.dup2(standard_input(), 0)
    preparation, module, name, ours, sent = pickle.loads(given)
    spawn.prepare(preparation)
    __import__(module)
    function = find(module, name)
    if ours is not None:
        plugins, arguments = pickle.loads(ours)
        function = Session(*plugins, **arguments)(function)
    args, kwargs = pickle.loads(sent)
    function(*args, **kwargs)


def find(module: str, qualified_name: str) -> Any:
    """Return the object of that name, or None."""
    found: object = sys.modules.get(module)
    for name in qualified_name.split("."):
        found = getattr(found, name, None)
    return found


def _importable(function: Callable[..., object]) -> bool:
    """Return whether another process can import the function's module.

    It can't if the function was defined at a prompt.
    """
    main = sys.modules["__main__"]
    return (
        function.__module__ != "__main__"
        or main.__spec__ is not None
        or getattr(main, "__file__", None) is not None
    )


def _names(call: DecoratedCall) -> tuple[str, ...]:
    """Return the function's names for its arguments."""
    code = getattr(call.function, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return (
        *names[: len(call.args)],
        *(f"argument {index}" for index in range(len(names), len(call.args))),
    )
