"""Files that libraries write by native code: safetensors, transformers, h5py, torch, sqlite3."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from torchbus.bus import discovery
from torchbus.bus.selection import companions_of
from torchbus.runtime import active

from torchbus_launch import imports
from torchbus_rank0.whole_files import absolute

if TYPE_CHECKING:
    from torchbus.plugin import Context

Make = Callable[[Callable[..., Any]], Callable[..., Any]]


class FileChanges(Protocol):
    """Makes changes of files on rank 0 while the other ranks wait."""

    def changing(self, kind: str, place: int) -> Make: ...
    def waiting_after(self, kind: str, place: int) -> Make: ...
    def note_once(self, path: str, text: str) -> None: ...
    def opening_hdf5(self, original: Callable[..., None]) -> Callable[..., None]: ...


SQLITE = (
    "every rank writes to {}, so each row is there once for each rank: write it under"
    " `if s.is_main:`"
)


# The argument of each function that is the path to which it writes.
WRITERS = {
    "numpy": {"savetxt": 0},
    "torch.jit": {"save": 1, "ScriptModule.save": 1, "RecursiveScriptModule.save": 1},
    "torch.export": {"save": 1},
    "torch.onnx": {"export": 2},
}


def follow_libraries(session: Context, files: FileChanges) -> None:
    """Replace the functions of libraries by which the script writes, once they are imported."""
    calls: dict[str, Callable[[], object]] = {
        "safetensors.torch": partial(_safetensors, session, files, "safetensors.torch"),
        "safetensors.numpy": partial(_safetensors, session, files, "safetensors.numpy"),
        "transformers.modeling_utils": partial(_transformers, session, files),
        "sqlite3": partial(_sqlite, session, files),
        "h5py._hl.files": partial(_h5py, session, files),
    }
    for name, writers in WRITERS.items():
        calls[name] = partial(_writers, session, files, name, writers)
    for name in [name for name in calls if name in sys.modules]:
        calls.pop(name)()
    session.on_close.callback(imports.follow(calls))


def _writers(session: Context, files: FileChanges, module: str, functions: dict[str, int]) -> None:
    wanted = []
    for name, place in functions.items():
        owner, _, attribute = name.rpartition(".")
        found = getattr(sys.modules[module], owner) if owner else sys.modules[module]
        wanted.append((found, attribute, files.changing("save", place)))
    session.seams.replace(wanted, session.on_close)


def _safetensors(session: Context, files: FileChanges, module: str) -> None:
    """Patch the native function that all writing functions of safetensors call."""
    session.replace(sys.modules[module], "serialize_file", files.changing("save", 1))


def _transformers(session: Context, files: FileChanges) -> None:
    """Patch ``save_pretrained``, in which ranks other than 0 may write nothing, and don't wait."""
    model = sys.modules["transformers.modeling_utils"].PreTrainedModel
    session.replace(model, "save_pretrained", files.waiting_after("save_pretrained", 1))


def _h5py(session: Context, files: FileChanges) -> None:
    session.replace(sys.modules["h5py._hl.files"].File, "__init__", files.opening_hdf5)


def _sqlite(session: Context, files: FileChanges) -> None:
    import sqlite3

    writes = {sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_INSERT}
    writes |= {sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}

    def watch(connection: sqlite3.Connection, path: str) -> None:
        def authorize(action: int, table: str | None, *_: object) -> int:
            if action in writes and not str(table).startswith("sqlite_"):
                files.note_once(path, SQLITE.format(path))
            return sqlite3.SQLITE_OK

        connection.set_authorizer(authorize)

    def connects(original: Callable[..., Any]) -> Callable[..., Any]:
        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            connection = original(database, *args, **kwargs)
            if database != ":memory:" and not kwargs.get("uri") and not isinstance(database, bytes):
                watch(connection, absolute(database))
            return connection

        return connect

    if not session.is_main:
        session.replace(sqlite3, "connect", connects)


def follow_companions(session: Context) -> None:
    """Register the plugins of modules that the script imports inside the block."""
    names = {entry.name for entry in discovery.every("companion") if entry.name not in sys.modules}
    calls = {name: partial(_imported, session, name) for name in names}
    session.on_close.callback(imports.follow(calls))


def _imported(session: Context, module: str) -> None:
    if session.is_inside and active.running() is session:
        known = [type(plugin) for _, plugin in session.bus.plugins()]
        for name, plugin in companions_of(module, known):
            session.add_plugin(plugin, name)
