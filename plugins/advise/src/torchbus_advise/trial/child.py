"""What the process of a trial does: it runs the script."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from torchbus.session import Session

from torchbus_advise.fake.answers import Answers
from torchbus_advise.fake.world import fake_tensors, uncompiled
from torchbus_advise.observing.observer import Enough, Observer
from torchbus_advise.trial.outcome import Outcome, Request
from torchbus_advise.trial.own_session import left_out
from torchbus_cli import programs as program

SHOWN_ANSWERS = 3


def work(request: Request, outcome: Path, output: Path) -> NoReturn:
    """In a process of its own, which ends here. What the script writes to its terminal goes to the
    file ``output``."""
    with output.open("wb", buffering=0) as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    try:
        run(request).write(outcome)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # whatever threads the script has left


def run(request: Request) -> Outcome:
    """The script up to the last step that is wanted, or to what it raises before."""
    observer = Observer(request.steps, halves=request.is_fake, then_s=request.then_s)
    answers = Answers()
    heard: list[str] = []
    notes: list[str] = []
    error: BaseException | None = None
    with ExitStack() as stack:
        stack.enter_context(hearing_warnings(heard))
        stack.enter_context(uncompiled())
        if request.is_fake:
            stack.enter_context(fake_tensors(answers))
        try:
            _run(request, observer, notes)
        except Enough:
            pass
        except BaseException as raised:
            error = raised
    facts = observer.facts()
    if facts is not None:
        told = [*notes, *_notes(answers)]
        facts = replace(facts, step_s=observer.step_s, notes=told, warnings=heard)
    return Outcome(facts, observer.backwards, *_told(error))


def _run(request: Request, observer: Observer, notes: list[str]) -> None:
    find = program.from_module if request.by_module else program.from_file
    found = find(request.name, request.args)
    session = Session(observer, strategy=None, devices=1, **request.options)
    with left_out(session, notes):
        found.run(found.start(session))


def _told(error: BaseException | None) -> tuple[str, str]:
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "", ""
    words = "".join(traceback.format_exception_only(error)).strip()
    return words, "".join(traceback.format_exception(error))


def _notes(answers: Answers) -> list[str]:
    lines = [line for line, _ in answers.given.most_common() if not _is_torch(line)]
    if not lines:
        return []
    shown = ", ".join(lines[:SHOWN_ANSWERS])
    more = f" and {len(lines) - SHOWN_ANSWERS} more" if len(lines) > SHOWN_ANSWERS else ""
    return [f"values that the script reads from tensors were answered 1 or True: {shown}{more}"]


def _is_torch(line: str) -> bool:
    return f"{os.sep}torch{os.sep}" in line


@contextmanager
def hearing_warnings(heard: list[str]) -> Iterator[None]:
    """Collects the warnings of the run, each once, instead of showing them."""

    def show(
        message: Warning | str, category: type[Warning], file: str, line: int, *_: object
    ) -> None:
        text = f"{os.path.relpath(file)}:{line}: {message}"
        if issubclass(category, UserWarning) and text not in heard:
            heard.append(text)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show  # type: ignore[assignment]
        yield
