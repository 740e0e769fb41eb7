"""Builds and loads the simulated accelerator, once for each environment and version."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torchbus import bootstrap
from torchbus.compat.python import current_frame
from torchbus.plugin import UsageError

TORCH = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep
HERE = os.path.dirname(os.path.realpath(__file__)) + os.sep


class Wait(NamedTuple):
    """A wait of the host: the operation, and the line outside of torch that called it."""

    what: str
    file: str
    line: int
    thread: str

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.line).strip()
        return f"{self.what} at {os.path.basename(self.file)}:{self.line}: {code}"


@contextmanager
def host_waits() -> Iterator[list[Wait]]:
    """Yield a list that collects the waits of all threads of this process inside the block.

    The host waits in ``.item()``, ``.cpu()``, ``bool(tensor)``, blocking copies, ``synchronize``,
    and operations whose sizes depend on values.
    """
    reported: list[Wait] = []
    extension().listen(lambda what: reported.append(_here(what)))
    try:
        yield reported
    finally:
        extension().listen(None)


def _here(what: str) -> Wait:
    frame = current_frame(2)
    found = frame
    while found.f_back is not None and found.f_code.co_filename.startswith((TORCH, HERE)):
        found = found.f_back
    outside = not found.f_code.co_filename.startswith((TORCH, HERE))
    place = found if outside else frame
    return Wait(what, place.f_code.co_filename, place.f_lineno, threading.current_thread().name)


SOURCES = Path(__file__).with_name("simulated")
NAME = "torchbus_simulated_accelerator"
ALLOCATOR = "c10/core/CachingDeviceAllocator.h"
FLAGS = ["-O0", "-g0"]
LOAD = f"""
import shlex, sys
from torch.utils import cpp_extension
# which writes -L without quotes: the path of an environment may have spaces
cpp_extension.TORCH_LIB_PATH = shlex.quote(cpp_extension.TORCH_LIB_PATH)
name, folder, *sources = sys.argv[1:]
cpp_extension.load(name, sources, extra_cflags={FLAGS}, build_directory=folder, verbose=True)
"""


def missing() -> str | None:
    """Return a sentence about what the build lacks here, or None if nothing is missing."""
    if sys.platform != "linux":
        return "it was made for Linux"
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        return "no C++ compiler was found: install g++, or set CXX"
    if shutil.which("ninja", path=_path()) is None:
        return "ninja was not found: pip install ninja"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python.h was not found: install Python's headers (python3-dev)"
    if not Path(torch.__file__).with_name("include").joinpath(ALLOCATOR).exists():
        return f"torch {torch.__version__} has no allocators for devices of extensions: upgrade it"
    return None


@cache
def extension() -> ModuleType:
    """Load the extension, and build it first if this environment has no build of its sources.

    Raises UsageError if the build lacks something or fails.
    """
    folder = _folder()
    if not (folder / f"{NAME}.so").exists():
        if reason := missing():
            raise UsageError(f"the simulated accelerator can't be built: {reason}")
        _build(folder)
    return _loaded(folder / f"{NAME}.so")


def _folder() -> Path:
    """Return the folder of the build, which depends on the sources, Python and torch."""
    reported = [sys.version, torch.__version__, *FLAGS]
    reported += [path.read_text("utf-8") for path in sorted(SOURCES.iterdir()) if path.is_file()]
    digest = hashlib.sha256("\0".join(reported).encode()).hexdigest()[:16]
    home = Path(sys.prefix)
    home = home if os.access(home, os.W_OK) else Path.home() / ".cache"
    return home / "torchbus" / f"simulated-accelerator-{digest}"


def _build(folder: Path) -> None:
    """Build in a temporary folder, and rename it.

    A separate process builds, because ``cpp_extension.load`` also loads the extension, from the
    temporary folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(folder.parent), ExitStack() as stack:
        if folder.exists():  # another process has built it meanwhile
            return
        mine = stack.enter_context(
            tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-")
        )
        sources = [str(SOURCES / "simulated.cpp")]
        reported = subprocess.run(
            [*bootstrap.command(LOAD), NAME, mine, *sources],
            env=os.environ | {"PATH": _path()},
            capture_output=True,
            text=True,
        )
        if reported.returncode:
            raise UsageError(
                "the simulated accelerator could not be built for torch"
                f" {torch.__version__}:\n{reported.stdout[-4000:]}{reported.stderr[-4000:]}"
            )
        made = Path(mine, "made")
        made.mkdir()
        shutil.copy(Path(mine, f"{NAME}.so"), made)
        made.rename(folder)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    import fcntl

    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _path() -> str:
    """Return PATH, preceded by the folder of this Python, where ninja may be installed."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
