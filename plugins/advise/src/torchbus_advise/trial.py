"""Runs the first steps of a script in a separate process."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import torch
from torchbus import Session
from torchbus.plugin import TorchbusError

from torchbus_advise.facts import ObservedFacts, from_json
from torchbus_advise.fake import Answers, fake_tensors, uncompiled
from torchbus_advise.observer import ObservedEnough, Observer
from torchbus_advise.plans import Installed
from torchbus_cli import programs as program

TIMED_S = 10.0
LOWER = {"bf16": "bf16-mixed", "gathered": "bf16-true"}
"""The session's precision in a trial that shows the activations of a plan's precision."""


class NoStep(TorchbusError):
    """The script made no optimizer step. ``trace`` is the traceback of what it raised, or ""."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


@dataclass(frozen=True)
class Survey:
    """What the runs of a script showed.

    ``facts`` are by precision, of which "32" is the script unchanged. ``real`` are those of the run
    with real values, if there was one. ``notes`` say what was not done, and why.
    """

    facts: Mapping[str, ObservedFacts]
    real: ObservedFacts | None
    notes: list[str]


def survey(
    request: TrialRequest,
    there: Installed,
    tensors: str,
    timeout_s: float,
    say: Callable[[str], None],
) -> Survey:
    """Run the first steps with ``tensors`` "fake", "real" or "auto". Raises NoStep."""
    trial = _Trials(request, timeout_s, say)
    notes: list[str] = []
    fake = TrialOutcome() if tensors == "real" else trial.fake()
    facts: dict[str, ObservedFacts] = {}
    if fake.facts is not None:
        facts["32"] = fake.facts
        if "precision" in there.options and not fake.facts.local_precision:
            lower = {name: trial.fake(precision=word).facts for name, word in LOWER.items()}
            facts |= {name: found for name, found in lower.items() if found is not None}
    reason = too_much(fake.facts) if fake.facts is not None and tensors == "auto" else ""
    if reason or tensors == "fake":
        notes += [f"not run with real values: {reason}"] if reason else []
        real = TrialOutcome()
    else:
        real = trial.real(lint="lint" in there.options)
    if not facts and real.facts is None:
        raise _no_step(request.name, real if tensors != "fake" else fake)
    if not facts and fake.error:
        notes.append(f"fake tensors do not carry this script ({fake.error.splitlines()[0]})")
    return Survey(facts or {"32": real.facts}, real.facts, notes)  # type: ignore[dict-item]


class _Trials:
    def __init__(self, request: TrialRequest, timeout_s: float, say: Callable[[str], None]) -> None:
        self._request, self._timeout_s, self._progress = request, timeout_s, say

    def fake(self, **options: object) -> TrialOutcome:
        suffix = f" under {options['precision']}" if options else ""
        self._progress(f"running the first {self._request.steps} steps with fake tensors{suffix}")
        request = replace(self._request, is_fake=True, options=dict(options))
        return run_run(request, self._timeout_s, self._progress)

    def real(self, lint: bool) -> TrialOutcome:
        self._progress(
            f"running the first steps with real values, for up to {TIMED_S:.0f} s of steps"
        )
        options = {"lint": True} if lint else {}
        request = replace(self._request, is_fake=False, options=options, then_s=TIMED_S)
        return run_run(request, self._timeout_s, self._progress)


def _no_step(name: str, outcome: TrialOutcome) -> NoStep:
    if outcome.error:
        return NoStep(f"{name} failed before its first step: {outcome.error}", outcome.trace)
    if not outcome.backwards:
        return NoStep(
            f"{name} ended and never called backward: pass the arguments with which it trains"
        )
    return NoStep(
        f"{name} ended after {outcome.backwards} backwards without a step of an optimizer: pass the"
        " arguments with which it trains"
    )


START: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
"""The context for processes. This process has imported torch, so a fork of it begins at once."""
REPORTED_EVERY_S = 30.0
LAST_LINES = 20


def run_run(request: TrialRequest, timeout_s: float, say: Callable[[str], None]) -> TrialOutcome:
    """Run the script in a separate process, and hide its output. If the process dies or takes
    longer than ``timeout_s``, the outcome has an error."""
    with tempfile.TemporaryDirectory(prefix="torchbus-advise-") as name:
        answered, output = Path(name) / "outcome.json", Path(name) / "output"
        process = START.Process(target=work, args=(request, answered, output))
        process.start()
        try:
            _wait(process, timeout_s, say)
        finally:
            late = process.is_alive()  # asked first: a killed process has an exit status
            process.kill() if late else None
            process.join()
        if answered.exists():
            return read_outcome(answered)
        trace = _tail(output.read_text(encoding="utf-8", errors="replace"))
        return TrialOutcome(error=_died(None if late else process.exitcode, timeout_s), trace=trace)


def _wait(process: BaseProcess, timeout_s: float, say: Callable[[str], None]) -> None:
    begun_s = time.monotonic()
    while process.is_alive() and (lost_s := time.monotonic() - begun_s) < timeout_s:
        process.join(min(REPORTED_EVERY_S, timeout_s - lost_s))
        if process.is_alive():
            lost_s = time.monotonic() - begun_s
            say(f"still running after {lost_s:.0f} s (limit {timeout_s:.0f} s)")


def _died(status: int | None, timeout_s: float) -> str:
    if status is None:
        return f"it did not finish its first steps within {timeout_s:.0f} s"
    if status == -9:
        return "the system killed it (signal 9), as it does when memory runs out"
    return f"the process ended with status {status} before its first step"


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-LAST_LINES:])


SHOWN_ANSWERS = 3


def work(request: TrialRequest, outcome: Path, output: Path) -> NoReturn:
    """Run the trial in this forked process, and exit.

    The script's terminal output goes to the file ``output``.
    """
    with output.open("wb", buffering=0) as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    # A fork loses torch's thread pool. The first thread that needs it makes a new one, and a second
    # thread that needs it meanwhile aborts the process: backward in a CUDA build starts eight.
    torch.set_num_threads(torch.get_num_threads())
    try:
        child_run(request).write(outcome)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # even if threads of the script still run


def child_run(request: TrialRequest) -> TrialOutcome:
    """Run the script up to the last wanted step, or until it raises."""
    observer = Observer(request.steps, halves=request.is_fake, then_s=request.then_s)
    answers = Answers()
    received: list[str] = []
    notes: list[str] = []
    error: BaseException | None = None
    with ExitStack() as stack:
        stack.enter_context(hearing_warnings(received))
        stack.enter_context(uncompiled())
        if request.is_fake:
            stack.enter_context(fake_tensors(answers))
        try:
            _run(request, observer, notes)
        except ObservedEnough:
            pass
        except BaseException as raised:
            error = raised
    facts = observer.facts()
    if facts is not None:
        reported = [*notes, *_notes(answers)]
        facts = replace(facts, step_s=observer.step_s, notes=reported, warnings=received)
    return TrialOutcome(facts, observer.backwards, *_formatted(error))


def _run(request: TrialRequest, observer: Observer, notes: list[str]) -> None:
    find = program.from_module if request.by_module else program.from_file
    found = find(request.name, request.args)
    session = Session(observer, strategy=None, devices=1, **request.options)
    with left_out(session, notes):
        found.run(found.start(session))


def _formatted(error: BaseException | None) -> tuple[str, str]:
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "", ""
    message = "".join(traceback.format_exception_only(error)).strip()
    return message, "".join(traceback.format_exception(error))


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
def hearing_warnings(received: list[str]) -> Iterator[None]:
    """Collect the warnings of the run, each once, instead of showing them."""

    def show(
        message: Warning | str, category: type[Warning], file: str, line: int, *_: object
    ) -> None:
        text = f"{os.path.relpath(file)}:{line}: {message}"
        if issubclass(category, UserWarning) and text not in received:
            received.append(text)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show  # type: ignore[assignment]
        yield


FILLED = 0.7
FLOPS_PER_CORE_S = 1e10
LONGEST_STEP_S = 30.0
GIB = 2**30


def too_much(facts: ObservedFacts) -> str:
    """Return why a run with real values is too much for this machine; "" if it is not."""
    needed, free = needed_bytes(facts), free_bytes()
    if needed > FILLED * free:
        return f"one process needs {needed / GIB:.1f} GiB, and {free / GIB:.1f} GiB are free here"
    flops = max(one.flops for one in facts.passes)
    step_s = flops / (FLOPS_PER_CORE_S * (os.cpu_count() or 1))
    return f"a step would take about {step_s:.0f} s here" if step_s > LONGEST_STEP_S else ""


def needed_bytes(facts: ObservedFacts) -> int:
    """Return the bytes that one process needs."""
    state_bytes = sum(
        one.bytes + one.gradient_bytes + one.state_bytes + one.scalar_bytes
        for one in facts.parameters
    )
    return state_bytes + facts.buffer_bytes + max(one.activation_bytes for one in facts.passes)


def free_bytes() -> int:
    """Return the free bytes of the host's memory."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if "MemAvailable" in line) * 1024
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class TrialRequest:
    """What one run does.

    ``name`` is that of the script, or of the module if ``by_module``. ``options`` are those of the
    session. ``then_s`` is the number of seconds for which further steps are timed.
    """

    name: str
    args: list[str]
    by_module: bool
    is_fake: bool
    steps: int
    options: dict[str, Any] = field(default_factory=dict)
    then_s: float = 0.0


@dataclass(frozen=True)
class TrialOutcome:
    """What one run showed.

    ``facts`` is None if the loop made no step. ``error`` is the message of what the script raised,
    and ``trace`` the traceback.
    """

    facts: ObservedFacts | None = None
    backwards: int = 0
    error: str = ""
    trace: str = ""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_outcome(path: Path) -> TrialOutcome:
    reported = json.loads(path.read_text(encoding="utf-8"))
    return TrialOutcome(
        **reported | {"facts": from_json(reported["facts"]) if reported["facts"] else None}
    )


NOTE = "the script's own session(...) was left out"


@contextmanager
def left_out(active: Session, notes: list[str]) -> Iterator[None]:
    """Let a script's ``session(...)`` return ``active`` inside the block. If that happens, a note
    is added to ``notes``."""

    def enter(plugins: tuple[object, ...], options: dict[str, Any]) -> Session:
        if NOTE not in notes:
            notes.append(NOTE)
        return active

    with program.sessions_replaced(program.stand_in(enter)):
        yield
