"""For tests of loops, sessions and plugins: real scripts in real processes, and whether torch is as it was.

::

    def test_two_ranks():
        result = run_script('''
            from torchbus import session
            with session(strategy="ddp", devices=2) as s:
                s.print(s.world_size)
        ''')
        assert result.ok() and result.stdout == "2\\n"

What looks at processes (``orphans``) needs Linux's /proc, and finds nothing elsewhere.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import types
import uuid
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules import module
from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler, optimizer
from torch.utils.data import DataLoader

from torchbus import events, session
from torchbus.events import hookimpl

MARKER = "TORCHBUS_TEST_MARKER"
OWNERS: dict[str, Any] = {
    "torch": torch,
    "torch.autograd": torch.autograd,
    "torch.distributed": dist,
    "torch.nn.functional": torch.nn.functional,
    "Tensor": torch.Tensor,
    "Module": torch.nn.Module,
    "DataLoader": DataLoader,
    "Optimizer": Optimizer,
    "LRScheduler": lr_scheduler.LRScheduler,
    "ReduceLROnPlateau": lr_scheduler.ReduceLROnPlateau,
}
ROUTINES = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
    property, staticmethod, classmethod,
)  # fmt: skip
REPLACED_BY_TORCH = {"manual_seed"}  # when torch.compile's machinery is loaded
STREAMS = ("stdin", "stdout", "stderr", "excepthook")
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "OMP_NUM_THREADS", "PYTHONPATH",
    "RANK", "TORCHBUS_LAUNCH", "WORLD_SIZE",
)  # fmt: skip
HOOK_TABLES: dict[str, tuple[Any, str]] = {
    "module forward hooks": (module, "_global_forward_hooks"),
    "module forward pre-hooks": (module, "_global_forward_pre_hooks"),
    "module backward hooks": (module, "_global_backward_hooks"),
    "module backward pre-hooks": (module, "_global_backward_pre_hooks"),
    "module registration hooks": (module, "_global_module_registration_hooks"),
    "parameter registration hooks": (module, "_global_parameter_registration_hooks"),
    "buffer registration hooks": (module, "_global_buffer_registration_hooks"),
    "optimizer step pre-hooks": (optimizer, "_global_optimizer_pre_hooks"),
    "optimizer step post-hooks": (optimizer, "_global_optimizer_post_hooks"),
}


# A script in a process of its own ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """How a script ended.

    ``status`` is the exit status of the process that was started, minus the signal's number if a signal ended it;
    ``seconds`` is the time until the last of its processes had ended; ``orphans`` are the commands of those that
    outlived it for so long that they had to be killed.
    """

    status: int
    stdout: str
    stderr: str
    seconds: float
    orphans: list[str]

    def ok(self, status: int = 0) -> bool:
        """True; otherwise AssertionError with everything that the script wrote."""
        assert self.status == status and not self.orphans, (
            f"exit status {self.status} (expected {status}) after {self.seconds:.1f} s, orphans: {self.orphans or 'none'}\n"
            f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
        )
        return True


class Script:
    """A running command, as ``start`` returns it. A context manager that leaves no process behind."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str | None], cwd: str | Path, stdin: str | None) -> None:
        self.marker = uuid.uuid4().hex
        changed = {**os.environ, "PYTHONUNBUFFERED": "1", **env, MARKER: self.marker}
        self._outputs = [tempfile.TemporaryFile("w+", errors="replace") for _ in range(2)]
        self._begun = time.monotonic()
        self._process = subprocess.Popen(
            command,
            env={name: value for name, value in changed.items() if value is not None},
            cwd=cwd,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=self._outputs[0],
            stderr=self._outputs[1],
            text=True,
            start_new_session=True,
        )
        if stdin is not None and self._process.stdin is not None:
            self._process.stdin.write(stdin)
            self._process.stdin.close()

    @property
    def pid(self) -> int:
        """Process id of what was started."""
        return self._process.pid

    def send(self, number: int, group: bool = False) -> None:
        """Send a signal to the process, or to its process group as a terminal does at Ctrl-C."""
        (os.killpg if group else os.kill)(self._process.pid, number)

    def wait(self, timeout_s: float = 60.0, orphans_s: float = 8.0) -> Result:
        """Wait for the command, then at most ``orphans_s`` for processes that it left.

        Raises TimeoutError, with what was written, when the command does not end; every process of it is killed.
        """
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            stdout, stderr = self._written()
            raise TimeoutError(f"no end within {timeout_s:g} s\n--- stdout\n{stdout}\n--- stderr\n{stderr}") from None
        left = _until_gone(self.marker, orphans_s)
        seconds = time.monotonic() - self._begun
        self.kill()
        return Result(status, *self._written(), seconds, left)

    def kill(self) -> None:
        """Kill the command and everything that it started."""
        if self._process.poll() is None:
            self._process.kill()
        for pid in _marked(self.marker):
            _kill(pid)
        self._process.wait()

    def __enter__(self) -> Script:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None) -> None:
        self.kill()
        for output in self._outputs:
            output.close()

    def _written(self) -> tuple[str, str]:
        for output in self._outputs:
            output.seek(0)
        stdout, stderr = (output.read() for output in self._outputs)
        return stdout, stderr


def start(command: Sequence[str], *, env: Mapping[str, str | None] | None = None, cwd: str | Path = ".", stdin: str | None = None) -> Script:
    """Start a command. ``env`` is added to this process's environment; a value of None takes a variable out."""
    return Script(command, env or {}, cwd, stdin)


def run(
    command: Sequence[str], *, env: Mapping[str, str | None] | None = None, cwd: str | Path = ".", stdin: str | None = None, timeout_s: float = 60.0
) -> Result:
    """Run a command to its end; see ``start`` and ``Script.wait``."""
    with start(command, env=env, cwd=cwd, stdin=stdin) as script:
        return script.wait(timeout_s)


def run_script(
    source: str | Path, *args: object, env: Mapping[str, str | None] | None = None, cwd: str | Path | None = None, timeout_s: float = 60.0
) -> Result:
    """Run a Python script to its end: the text of one (indented as a whole, if you like) or the path of one.

    The working directory defaults to a temporary one, in which a text is ``script.py``.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = source if isinstance(source, Path) else write_script(folder, source)
        return run([sys.executable, str(path), *map(str, args)], env=env, cwd=cwd or folder, timeout_s=timeout_s)


def write_script(folder: str | Path, source: str, name: str = "script.py") -> Path:
    """Write the text of a script, its common indentation removed; returns its path."""
    path = Path(folder, name)
    path.write_text(textwrap.dedent(source))
    return path


def orphans(marker: str) -> list[str]:
    """Commands of the running processes that descend from the ``Script`` with this marker."""
    return [_command(pid) for pid in _marked(marker)]


def _until_gone(marker: str, seconds: float) -> list[str]:
    deadline = time.monotonic() + seconds
    while (left := orphans(marker)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _marked(marker: str) -> list[int]:
    text = f"{MARKER}={marker}".encode()
    numbers = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()] if os.path.isdir("/proc") else []
    return [pid for pid in numbers if pid != os.getpid() and text in _read(pid, "environ")]


def _command(pid: int) -> str:
    return f"{pid}: " + _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path("/proc", str(pid), name).read_bytes()
    except OSError:
        return b""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


# Whether torch is as it was ----------------------------------------------------------------------------------------


def torch_state() -> dict[str, Any]:
    """What a session may change in torch and in this process, by name: every function of torch's that a loop meets, hooks,
    signals, threads, streams, launchers' variables. For ``assert_torch_unchanged``."""
    state: dict[str, Any] = {
        f"{name}.{attribute}": value
        for name, owner in OWNERS.items()
        for attribute, value in vars(owner).items()
        if issubclass(type(value), ROUTINES) and attribute not in REPLACED_BY_TORCH
    }
    state |= {f"sys.{name}": getattr(sys, name) for name in STREAMS}
    state |= {name: dict(getattr(owner, attribute, {})) for name, (owner, attribute) in HOOK_TABLES.items()}
    state |= {signal.Signals(number).name: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if threading.current_thread() is threading.main_thread():
        state["signal wakeup descriptor"] = fd = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(fd)
    for function in (clip_grad.clip_grad_norm_, clip_grad.clip_grad_value_):
        state[f"inside {function.__name__}"] = [cell.cell_contents for cell in function.__closure__ or ()]
    for cls in _optimizer_classes():
        state[f"{cls.__module__}.{cls.__qualname__}.step"] = vars(cls).get("step")
    state["threads of torch"] = torch.get_num_threads()
    state["threads of torchbus"] = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("torchbus"))
    state["process group"] = dist.is_available() and dist.is_initialized()
    state["default device, dtype"] = (torch.get_default_device(), torch.get_default_dtype())
    state["autograd, inference"] = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    state |= {name: os.environ.get(name) for name in VARIABLES}
    state["working directory"] = os.getcwd()
    state["active session"] = sys.modules[session.__module__].current()
    return state


def _optimizer_classes() -> list[type]:
    """Those of torch that were used: torch itself replaces the step of others when they are."""
    found = [thing for thing in vars(torch.optim).values() if isinstance(thing, type) and issubclass(thing, torch.optim.Optimizer)]
    return [cls for cls in found if getattr(vars(cls).get("step"), "hooked", False)]


def assert_torch_unchanged(before: Mapping[str, Any]) -> None:
    """Raise AssertionError, naming what differs from an earlier ``torch_state()``."""
    now = torch_state()
    different = [f"{name}: {before[name]!r} is now {now.get(name)!r}" for name in before if before[name] != now.get(name)]
    assert not different, "the session left something changed:\n" + "\n".join(different)


def listening_ports() -> list[int]:
    """TCP ports at which this process listens (Linux)."""
    own = {os.readlink(entry) for entry in Path("/proc/self/fd").glob("*") if entry.is_symlink()}
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text().splitlines()[1:]]
    return sorted({int(line[1].split(":")[1], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own})


# Plugins -----------------------------------------------------------------------------------------------------------


class Recorder:
    """A plugin that notes the names of the events it hears, in ``names``.

    It listens to those given, by default to all but ``run_backward``, whose listener would have to do the work.
    """

    def __init__(self, *listened: str) -> None:
        self.names: list[str] = []
        for name in listened or ALL_EVENTS - {"run_backward"}:
            setattr(self, name, self._listener(name))

    def _listener(self, name: str) -> Callable[[], None]:
        def listen() -> None:
            self.names.append(name)

        return hookimpl(listen)


ALL_EVENTS = frozenset(name for name, value in vars(events).items() if hasattr(value, "torchbus_spec"))


def empty_environment(folder: str | Path, *packages: str) -> str:
    """Make a virtual environment with what is installed here, less everything of torchbus; returns its Python.

    Nothing is copied or downloaded. ``packages`` are importable packages that are to be there all the same, without
    being installed: ``"torchbus"`` gives a core that discovers no plugin.
    """
    venv.create(folder, with_pip=False)
    home = Path(folder).resolve()
    site = next(home.glob("lib*/python*/site-packages"), home / "Lib" / "site-packages")
    for path in map(Path, sys.path):
        if path.name in ("site-packages", "dist-packages"):
            for entry in path.iterdir():
                if not (entry.name.startswith("torchbus") or entry.suffix in (".pth", ".egg-link")) and not (site / entry.name).exists():
                    (site / entry.name).symlink_to(entry)
    for package in packages:
        (site / package).symlink_to(Path(sys.modules[package].__file__ or "").parent)
    return str(next(path for path in (home / "bin" / "python", home / "Scripts" / "python.exe") if path.exists()))
