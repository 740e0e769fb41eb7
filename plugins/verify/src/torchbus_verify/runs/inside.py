"""The process of a run: records the script while it runs."""

from __future__ import annotations

import os
import random
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import DataLoader
from torchbus.plugin import Context, TorchbusError, hookimpl
from torchbus.tree import map_tensors

from torchbus_cli import session_options
from torchbus_cli.programs import MainProgram, sessions_replaced, stand_in
from torchbus_redaction.redactor import redacted_traceback
from torchbus_verify._compat import DATA_ITERATOR
from torchbus_verify.record.batches import BatchRecorder
from torchbus_verify.record.steps import RecordedEnough, StepRecorder, Stopping
from torchbus_verify.record.writing import Printed, RecordWriter
from torchbus_verify.runs.script_session import stop_at_session, use_active
from torchbus_verify.runs.writes import FolderMirror, RunWrites, WritesOutside

SEED = 20260214
FAILED, OUTSIDE = "failed.txt", "outside.txt"


class Contexts:
    """A plugin that provides the session's context to changes of the run."""

    found: Context | None = None

    @hookimpl
    def session_start(self, session: Context) -> None:
        self.found = session


def execute(
    request: RunRequest, folder: Path, mirror: FolderMirror, alone: bool, changes: Sequence[Change]
) -> int:
    """Run the script to its end or to the last compared step; return the exit status."""
    torch.set_num_threads(1)  # so that sums are the same in every run, and ranks can be forked
    seed(SEED)  # so that a script without seeds starts the same in every run
    argv = _relative(request, mirror)
    RunWrites(mirror, folder, lambda path: _note(folder / OUTSIDE, path)).install()
    if request.float64:
        install()
    try:
        program = session_options.find(*argv, by_module=request.by_module)
        stopping = Stopping(request.steps)
        stopping.install()
        contexts = Contexts()
        session = None if alone else _begin(program, request, contexts)
    except (TorchbusError, SyntaxError) as error:
        _note(folder / FAILED, f"{type(error).__name__}: {error}")
        return 1
    if session is None:
        program.install()
    enter = use_active if request.begins_session else partial(stop_at_session, folder)
    with sessions_replaced(stand_in(enter)):
        return _listen(program, session, contexts.found, stopping, folder, changes)


def _begin(program: MainProgram, request: RunRequest, contexts: Contexts) -> Any:
    plugins = [*request.plugins, contexts]
    return program.start(session_options.session_of({**request.options, "plugins": plugins}))


def _listen(
    program: MainProgram,
    session: Any,
    context: Context | None,
    stopping: Stopping,
    folder: Path,
    changes: Sequence[Change],
) -> int:
    rank = 0 if context is None else context.world.rank
    writer = RecordWriter(folder / f"rank{rank}", keep_tensors=rank == 0)
    printed, steps = Printed(writer), StepRecorder(writer, stopping)
    printed.install()
    BatchRecorder(writer).install()
    steps.install(context)
    for change in changes:
        change(Inside(rank, context, steps, writer))
    error = program.execute()
    ended = error is None or (isinstance(error, SystemExit) and not error.code)
    if ended or isinstance(error, RecordedEnough):
        steps.finish()
    printed.remove()
    writer.write(
        "end",
        how="stopped" if isinstance(error, RecordedEnough) else "ended" if ended else "failed",
    )
    return _close(session, None if ended or isinstance(error, RecordedEnough) else error, folder)


def _close(session: Any, error: BaseException | None, folder: Path) -> int:
    try:
        if session is not None:
            session.close(error)
    except BaseException as final:
        error = final
    if error is None:
        return 0
    if not isinstance(error, WritesOutside):
        _note(folder / FAILED, redacted_traceback(error))
    return 1


def _relative(request: RunRequest, mirror: FolderMirror) -> list[str]:
    """Return the command line with the script's path in the mirror."""
    first, *remaining = request.argv
    path = os.path.realpath(os.path.join(mirror.original, first))
    if request.by_module:
        return [first, *remaining]
    if not mirror.is_original(path):
        return [path, *remaining]
    place = os.path.relpath(path, mirror.original)
    mirror.make_real(str(mirror.place / place))  # Python imports from where the script really is
    parent = mirror.original.parent
    if _is_users(parent):
        sys.path.append(str(parent))  # paths relative to the script's file lead elsewhere
    return [place, *remaining]


def _is_users(folder: Path) -> bool:
    """Whether only this user and root can put modules there."""
    status = folder.stat()
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & stat.S_IWOTH


def seed(number: int) -> None:
    """Seed the generators of torch, Python and, if imported, NumPy."""
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)


def _note(path: Path, text: str) -> None:
    if not path.exists():
        path.write_text(text, encoding="utf-8")


def read_note(path: Path) -> str:
    """Return a note of a run; "" if there is none."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


ARITHMETIC = (
    "precision",
    "amp_backend",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "warmup_steps",
)
WINDOW = "accumulate_grad_batches"


def of(request: RunRequest) -> tuple[RunRequest, tuple[Change, ...]]:
    """Return the request of the reference run, and the changes that it needs."""
    if request.begins_session:
        return request.with_options(devices=1), ()
    given = {name: value for name, value in request.options.items() if name in ARITHMETIC}
    if request.options.get("scale_lr") is not None:
        given.pop("warmup_steps", None)  # a warm-up ends at the scaled rate, which one rank lacks
    changes: tuple[Change, ...] = (larger_batch(window(request)),) if window(request) > 1 else ()
    return replace(request, plugins=(), options={"strategy": None, "devices": 1, **given}), changes


def is_plain(request: RunRequest) -> bool:
    """Whether the reference run has no session."""
    return not request.begins_session and not any(name in request.options for name in ARITHMETIC)


def window(request: RunRequest) -> int:
    """Return the number of batches that the session accumulates."""
    given = request.options.get(WINDOW, 1)
    return given if isinstance(given, int) else 1


def same_backwards(request: RunRequest) -> bool:
    """Whether both runs see the same batches in the same backwards."""
    return WINDOW not in request.options


def describe_plain(request: RunRequest) -> str:
    """Return the name of the reference run in a report."""
    plain = "the plain run" if is_plain(request) else "one rank under the same options"
    if request.begins_session:
        return plain
    return (
        f"{plain} with a batch {window(request)} times as large" if window(request) > 1 else plain
    )


def larger_batch(factor: int) -> Change:
    """Return a change that multiplies the batch size of each loader."""

    def change(run: Inside) -> None:
        loaders: Any = DataLoader
        original = loaders.__init__

        def __init__(
            loader: DataLoader[object],
            dataset: object,
            batch_size: int | None = 1,
            *args: object,
            **kwargs: object,
        ) -> None:
            whole = kwargs.get("batch_sampler") is None and isinstance(batch_size, int)
            original(
                loader,
                dataset,
                batch_size * factor if whole and batch_size else batch_size,
                *args,
                **kwargs,
            )

        loaders.__init__ = __init__

    return change


SINGLE = (torch.float32,)
FLOAT = "float"


def install() -> None:
    """Make new tensors, batches of loaders and inputs of modules float64 instead of float32."""
    torch.set_default_dtype(torch.float64)
    for name in ("float32", "float"):
        setattr(torch, name, torch.float64)
    for cls in (Tensor, torch.nn.Module):
        setattr(cls, FLOAT, cls.double)
    for name in ("tensor", "as_tensor", "from_numpy"):
        setattr(torch, name, _widened(getattr(torch, name)))
    take = DATA_ITERATOR.__next__
    DATA_ITERATOR.__next__ = lambda iterator: _wide(take(iterator))
    widen: Any = lambda module, inputs: tuple(_wide(one) for one in inputs)  # noqa: E731
    register_module_forward_pre_hook(widen)


def _widened(make: Callable[..., object]) -> Callable[..., object]:
    return lambda *args, **kwargs: _wide(make(*args, **kwargs))


def _wide(value: Any) -> Any:
    wrapped = getattr(value, "batch", None)
    if wrapped is not None and not isinstance(value, Tensor | list | tuple | dict):
        value.batch = _wide(wrapped)  # in the sampler's wrapper
        return value
    return map_tensors(value, lambda one: one.double() if one.dtype in SINGLE else one)


Change = Callable[["Inside"], None]
"""A change of a run before the script begins: a removed cause, a larger batch."""


@dataclass(frozen=True)
class RunRequest:
    """The script, its session, and the number of steps to compare."""

    argv: tuple[str, ...]
    """The script and its arguments."""
    by_module: bool = False
    plugins: tuple[object, ...] = ()
    options: dict[str, object] = field(default_factory=dict)
    """The options of the session."""
    steps: int | None = 20
    float64: bool = False
    folder: Path = Path(".")
    """The script's own working folder."""
    given: frozenset[str] = frozenset()
    """The names of the options that the user gave to the command."""
    begins_session: bool = False
    """Whether the script begins the session, of which ``options`` are."""

    def with_options(self, **options: object) -> RunRequest:
        return replace(self, options={**self.options, **options})

    def with_whole_batches(self) -> RunRequest:
        """Let every rank train on the script's whole batches."""
        retained = {
            name: value
            for name, value in self.options.items()
            if name not in ("batch", "shard_eval")
        }
        return replace(self, options={**retained, "replace_sampler": False})


@dataclass(frozen=True)
class Inside:
    """The run before its script begins, for changes to act on."""

    rank: int
    session: Any
    """The session's context; None in the plain run."""
    steps: StepRecorder
    """Receives backwards (``record.steps.StepRecorder``)."""
    writer: RecordWriter
    """Writes events into the record."""
