"""What happens in the process of a run: it listens, and lets the script do the rest."""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torchbus.plugin import Context, TorchbusError, hookimpl

from torchbus_cli import session_options
from torchbus_cli.programs import Program
from torchbus_verify.record.batches import Batches
from torchbus_verify.record.printed import Printed
from torchbus_verify.record.steps import Steps
from torchbus_verify.record.stopping import Enough, Stopping
from torchbus_verify.record.writing import Writer
from torchbus_verify.runs import double
from torchbus_verify.runs.mirror import Mirror
from torchbus_verify.runs.request import Change, Inside, Request
from torchbus_verify.runs.writes import Writes, WritesOutside

SEED = 20260214
FAILED, OUTSIDE = "failed.txt", "outside.txt"


class Contexts:
    """A plugin that keeps hold of the session's context for whatever changes the run."""

    found: Context | None = None

    @hookimpl
    def session_start(self, session: Context) -> None:
        self.found = session


def execute(
    request: Request, own: Path, mirror: Mirror, alone: bool, changes: Sequence[Change]
) -> int:
    """Runs the script to its end or to the last step that is wanted; returns the exit status."""
    torch.set_num_threads(1)  # sums are the same in every run, and ranks may be forked
    _seed()
    words = _relative(request, mirror)
    Writes(mirror, own, lambda path: _note(own / OUTSIDE, path)).install()
    if request.float64:
        double.install()
    try:
        program = session_options.find(*words, by_module=request.by_module)
        stopping = Stopping(request.steps)
        stopping.install()
        contexts = Contexts()
        session = None if alone else _begin(program, request, contexts)
    except (TorchbusError, SyntaxError) as error:
        _note(own / FAILED, f"{type(error).__name__}: {error}")
        return 1
    if session is None:
        program.install()
    return _listen(program, session, contexts.found, stopping, own, changes)


def _begin(program: Program, request: Request, contexts: Contexts) -> Any:
    plugins = [*request.plugins, contexts]
    return program.start(session_options.session_of({**request.options, "plugins": plugins}))


def _listen(
    program: Program,
    session: Any,
    context: Context | None,
    stopping: Stopping,
    own: Path,
    changes: Sequence[Change],
) -> int:
    rank = 0 if context is None else context.world.rank
    writer = Writer(own / f"rank{rank}", keep_tensors=rank == 0)
    printed, steps = Printed(writer), Steps(writer, stopping)
    printed.install()
    Batches(writer).install()
    steps.install(context)
    for change in changes:
        change(Inside(rank, context, steps, writer))
    error = _run(program)
    ended = error is None or (isinstance(error, SystemExit) and not error.code)
    if ended or isinstance(error, Enough):
        steps.finish()
    printed.remove()
    writer.write(
        "end", how="stopped" if isinstance(error, Enough) else "ended" if ended else "failed"
    )
    return _close(session, None if ended or isinstance(error, Enough) else error, own)


def _run(program: Program) -> BaseException | None:
    try:
        exec(program.code, vars(program.main))
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not program.code:
            trace = trace.tb_next
        return error.with_traceback(trace)
    return None


def _close(session: Any, error: BaseException | None, own: Path) -> int:
    try:
        if session is not None:
            session.close(error)
    except BaseException as final:
        error = final
    if error is None:
        return 0
    if not isinstance(error, WritesOutside):
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        _note(own / FAILED, text)
    return 1


def _relative(request: Request, mirror: Mirror) -> list[str]:
    """The script by its place in the mirror, wherever it is in the script's own folder."""
    first, *rest = request.words
    path = os.path.realpath(os.path.join(mirror.original, first))
    if request.by_module or not mirror.is_original(path):
        return [first, *rest]
    place = os.path.relpath(path, mirror.original)
    mirror.make_real(str(mirror.place / place))  # Python imports from where the script really is
    sys.path.append(str(mirror.original.parent))  # what it adds by its own path leads elsewhere
    return [place, *rest]


def _seed() -> None:
    """A script that seeds nothing begins alike in every run; one that seeds does not notice."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(SEED)


def _note(path: Path, text: str) -> None:
    if not path.exists():
        path.write_text(text, encoding="utf-8")


def told(path: Path) -> str:
    """What a run has noted; "" if nothing."""
    return path.read_text(encoding="utf-8") if path.exists() else ""
