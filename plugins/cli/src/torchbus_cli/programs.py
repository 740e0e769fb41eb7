"""Runs what ``python SCRIPT ARGS`` or ``python -m MODULE ARGS`` would run.

``runpy`` restores the old ``__main__`` when the program ends. Here, the program's ``__main__``
stays until the process ends, as under python itself. So the program's classes can be pickled while
the session closes, and in ``atexit`` handlers.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import io
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any

from torchbus.plugin import TorchbusError, UsageError
from torchbus.session import Session


@dataclass(frozen=True)
class MainProgram:
    """A program: its code, the module ``__main__`` in which it runs, and its ``sys.argv``."""

    code: CodeType
    main: ModuleType
    argv: list[str]

    def install(self) -> None:
        """Make this process look like one that python started with the program."""
        sys.argv = self.argv
        sys.modules["__main__"] = self.main

    def start(self, session: Session) -> Session:
        """Begin the session in the program's process. Raises what the session raises."""
        session._context.under_command = True
        self.install()
        return session.start()

    def run(self, session: Session) -> None:
        """Run the program, and close the session after it.

        Raises the program's exception, or the one with which the session replaces it.
        """
        error = self.execute()
        try:
            session.close(error)
        finally:
            self._show_local_frames_only()
        if error is not None:
            raise error

    def execute(self) -> BaseException | None:
        """Run the code, and return its exception, with a traceback that begins in the program."""
        try:
            exec(self.code, vars(self.main))
        except BaseException as error:
            return error.with_traceback(self._local_frames(error.__traceback__))
        return None

    def _local_frames(self, trace: TracebackType | None) -> TracebackType | None:
        while trace is not None and trace.tb_frame.f_code is not self.code:
            trace = trace.tb_next
        return trace

    def _show_local_frames_only(self) -> None:
        show = sys.excepthook

        def shown(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            mine = self._local_frames(trace)
            trace = mine if mine is not None or isinstance(error, TorchbusError) else trace
            show(kind, error.with_traceback(trace), trace)

        sys.excepthook = shown


def from_file(path: str, args: list[str]) -> MainProgram:
    """Load a script, or a folder or zip archive with a ``__main__.py``.

    Raises UsageError if there is none.
    """
    if not os.path.exists(path):
        near = difflib.get_close_matches(os.path.basename(path), _files_beside(path), 3)
        raise UsageError(
            f"there is no file {path!r}" + (f": did you mean {' or '.join(near)}?" if near else "")
        )
    file = os.path.abspath(path)
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        _search_first(file)
        return _from_spec(
            PathFinder.find_spec("__main__", [file]), [path, *args], f"{path!r} has no __main__.py"
        )
    _search_first(os.path.dirname(os.path.realpath(path)))
    main = ModuleType("__main__")
    vars(main).update(__file__=file, __cached__=None, __loader__=SourceFileLoader("__main__", file))
    with io.open_code(file) as stream:
        return MainProgram(
            compile(stream.read(), file, "exec", dont_inherit=True), main, [path, *args]
        )


def from_module(name: str, args: list[str]) -> MainProgram:
    """Load a module, or a package with a ``__main__``; raise UsageError if there is none."""
    if name.endswith(".py"):
        raise UsageError(f"-m takes the name of a module: leave it out to run the file {name}")
    _search_first(os.getcwd())
    spec = _find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find_spec(f"{name}.__main__")
    return _from_spec(
        spec, args, f"there is no module {name!r} in {os.getcwd()} or among the installed ones"
    )


def _from_spec(spec: ModuleSpec | None, argv: list[str], otherwise: str) -> MainProgram:
    code = (
        spec.loader.get_code(spec.name)
        if spec is not None and isinstance(spec.loader, InspectLoader)
        else None
    )
    if spec is None or code is None:
        raise UsageError(otherwise)
    main = importlib.util.module_from_spec(spec)
    main.__name__ = "__main__"
    return MainProgram(
        code, main, argv if spec.name == "__main__" else [spec.origin or spec.name, *argv]
    )


def _find_spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            return None
        raise


def _search_first(directory: str) -> None:
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path[0] = directory


def _files_beside(path: str) -> list[str]:
    folder = os.path.dirname(path) or "."
    return os.listdir(folder) if os.path.isdir(folder) else []


Enter = Callable[[tuple[object, ...], dict[str, Any]], Session]


@contextmanager
def sessions_replaced(kind: type) -> Iterator[None]:
    """Let scripts import ``kind`` as ``session`` and ``Session`` from torchbus inside the block."""
    package = vars(sys.modules["torchbus"])
    original = {name: package[name] for name in ("session", "Session")}
    package.update(dict.fromkeys(original, kind))
    try:
        yield
    finally:
        package.update(original)


def stand_in(enter: Enter) -> type:
    """Return a class for ``sessions_replaced`` whose objects begin and end no session.

    When the script enters or uses such an object, it gets what ``enter`` returns for its plugins
    and options.
    """

    class ScriptSession:
        def __init__(self, *plugins: object, **options: object) -> None:
            self._given = plugins, options

        def __enter__(self) -> Session:
            return enter(*self._given)

        start = __enter__

        def __exit__(self, *error: object) -> None:
            pass

        def __call__(self, function: Callable[..., object]) -> Callable[..., object]:
            @functools.wraps(function)
            def run(*args: object, **kwargs: object) -> object:
                with self:
                    return function(*args, **kwargs)

            return run

        def __getattr__(self, name: str) -> object:
            return getattr(self.__enter__(), name)

        def close(self, error: BaseException | None = None) -> None:
            """Close nothing: the command closes its session."""

    return ScriptSession
