"""Runs one rule on one subject, and returns the outcome."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchbus_testing.conformance import process
from torchbus_testing.conformance.judgement import (
    Evidence,
    RunRecord,
    first,
    read_after,
    read_records,
)
from torchbus_testing.conformance.process import CheckRequest
from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.subject import Subject, missing
from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result

LIMIT_S = 90.0
RunRequest = Callable[[CheckRequest], tuple[Result, bool]]


@dataclass(frozen=True)
class CaseOutcome:
    """The outcome of one case.

    ``problems`` say how the rule is broken, and are empty if it holds. ``refused`` is the message
    of a refusal. ``missing`` are plugins without which the rule was not tried.
    """

    rule: Rule
    subject: Subject
    ranks: int
    problems: tuple[str, ...] = ()
    refused: str = ""
    missing: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the rule was tried, and no number was wrong."""
        return not self.problems and not self.missing

    def __str__(self) -> str:
        where = f"{self.subject}, {self.ranks} ranks, rule {self.rule.name!r}"
        if self.missing:
            return f"{where}: not tried without torchbus's {', '.join(self.missing)}"
        if self.problems:
            lines = [f"{where} is broken", f"rule: {self.rule.says}", *first(self.problems)]
            return "\n".join([*lines, f"remedy: {self.rule.remedy}"])
        return f"{where}: refused: {self.refused}" if self.refused else f"{where}: holds"


def check(
    rule: Rule,
    subject: Subject,
    ranks: int = 2,
    *,
    dtype: str = "float64",
    limit_s: float = LIMIT_S,
    preloaded: tuple[str, ...] = (),
) -> CaseOutcome:
    """Run a rule's loop on ``ranks`` ranks and in one plain process, and compare.

    The ranks compute in ``dtype``, the plain process always in float64. A case that takes more than
    ``limit_s`` seconds is killed. ``preloaded`` are modules that are imported once for all cases.
    """
    lacks = tuple(missing(rule.needs))
    if lacks:
        return CaseOutcome(rule, subject, ranks, missing=lacks)
    with tempfile.TemporaryDirectory() as folder:
        run = functools.partial(_run, preloaded, limit_s)
        evidence = _gather(rule, subject, ranks, dtype, run, Path(folder))
    if evidence.refusals:
        refusals = " / ".join(evidence.refusals)
        reported = (
            (f"refused, and this rule can't be refused: {refusals}",) if rule.essential else ()
        )
        return CaseOutcome(rule, subject, ranks, reported, refusals)
    return CaseOutcome(rule, subject, ranks, tuple(rule.judge(evidence)))


def _gather(
    rule: Rule, subject: Subject, ranks: int, dtype: str, run: RunRequest, folder: Path
) -> Evidence:
    """Run the sessions of a rule until one does not reach its end."""
    fields = json.dumps(dataclasses.asdict(subject))
    reference = _reference(rule.name, fields if subject.numbers_of_its_local else "")
    for stage, world_size in enumerate(rule.worlds(ranks)):
        mine = folder / str(stage)
        mine.mkdir()
        request = CheckRequest(rule.name, fields, world_size, stage, dtype, sys.path, str(mine))
        evidence = _evidence(request, run(request), reference)
        if not evidence.complete:
            break
    return evidence


@functools.cache
def _reference(rule: str, subject: str) -> RunRecord:
    """Run the rule in one process: without torchbus, or with a plugin that changes the numbers."""
    with tempfile.TemporaryDirectory() as folder:
        request = CheckRequest(rule, subject, 1, 0, "float64", sys.path, folder)
        result = fork_script(Path(process.__file__), request.written(), timeout_s=LIMIT_S)
        refusal = read_after(Path(folder))["refusal"]
        if refusal:
            return RunRecord({}, {}, 0.0, 1, refusal=refusal)
        result.ok()
        return read_records(Path(folder))[0]


def _run(preloaded: tuple[str, ...], limit_s: float, request: CheckRequest) -> tuple[Result, bool]:
    """Run the script. Return its result, and False if it was killed for being late."""
    try:
        script = Path(process.__file__)
        return fork_script(script, request.written(), timeout_s=limit_s, preloaded=preloaded), True
    except TimeoutError as late:
        return Result(1, "", str(late), limit_s, []), False


def _evidence(request: CheckRequest, run: tuple[Result, bool], reference: RunRecord) -> Evidence:
    mine, (result, ended) = Path(request.folder), run
    return Evidence(
        request.ranks,
        read_records(mine),
        reference,
        result.status,
        result.stderr,
        result.seconds,
        ended,
        tuple(result.orphans),
        **read_after(mine),
    )
