"""The verification of one script, from its first run to the verdict."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from torchbus import bootstrap
from torchbus.plugin import UsageError

from torchbus_verify import report
from torchbus_verify.causes import cause, search
from torchbus_verify.causes.cause import Cause
from torchbus_verify.causes.search import Search
from torchbus_verify.compare import output, samples
from torchbus_verify.compare.difference import Comparison, Difference
from torchbus_verify.compare.steps import Drift
from torchbus_verify.findings import look_beside, samples_of
from torchbus_verify.report import NOT_COMPARED, Verdict
from torchbus_verify.runs.inside import RunRequest
from torchbus_verify.runs.run import EndedRun
from torchbus_verify.runs.script_session import merged
from torchbus_verify.variants import NO_CAUSES, WHOLE_BATCHES, Laboratory, Say

FLOATS_OF_32_BITS = ("float32",)


def verify_request(request: RunRequest, say: Say = lambda what, steps: None) -> Verdict:
    """Run the script, compare the runs, and search for the causes of a difference."""
    with Laboratory(request, say) as lab:
        found = lab.plain().session
        if not found:
            verdict = _verdict(lab)
            return replace(
                verdict, runs=lab.runs, seconds=lab.seconds, seconds_compared=lab.seconds_compared
            )
    try:
        plugins, options = ast.literal_eval(found)
    except (ValueError, SyntaxError):
        return Verdict(NOT_COMPARED, report.OBJECTS)
    options = merged(request.options, request.given, options)
    plugins = (*plugins, *request.plugins)
    return verify_request(
        replace(request, plugins=plugins, options=options, begins_session=True), say
    )


def _verdict(lab: Laboratory) -> Verdict:
    plain = lab.plain()
    refused = report.of_plain(plain)
    if refused is not None:
        return refused
    ours = lab.session()
    failed = report.of_session(ours)
    two = _Two(lab, plain, ours)
    if failed is None:
        return two.verdict()
    notes = report.before_failing(lab.compared(ours, plain), _by_parts(lab))
    return two.by_itself() or replace(failed, notes=notes)


def _by_parts(lab: Laboratory) -> bool:
    """Whether a script that fails under the session succeeds with whole batches on every rank."""
    by_dp = lab.request.options.get("strategy") == "dp"
    return not by_dp and not lab.session(NO_CAUSES, **WHOLE_BATCHES).status


@dataclass
class _Two:
    """Compares a plain run with a run under the session."""

    lab: Laboratory
    plain: EndedRun
    ours: EndedRun

    def verdict(self) -> Verdict:
        compared = self.lab.compared(self.ours, self.plain)
        differs = bool(compared.beyond())
        if differs or self._other_than_numbers():
            wobbles = self.by_itself()
            if wobbles is not None:
                return wobbles
        found, rounded = self._judged(compared) if differs else (compared, "")
        first = next(iter(found.beyond()), None)
        causes = [] if first is None else self._causes(first)
        rounding = max(compared.tolerated, compared.largest)
        beside = look_beside(self.lab, self.plain, self.ours, found, rounding, bool(causes))
        causes += [one for one in beside.causes if one not in causes]
        return report.summed_up(self.lab, found, first, causes, [*beside.notes, rounded])

    def _causes(self, first: Difference) -> list[Cause]:
        """Return the causes. Different samples explain different numbers, so they come first."""
        mixed = samples_of(self.lab, self.ours, self.plain).problems
        return [cause.samples(mixed)] if mixed else Search(self.lab).causes(first)

    def _other_than_numbers(self) -> bool:
        ours, theirs = output.lines_of(self.ours.first), output.lines_of(self.plain.first)
        wrong = samples.compare(self.ours.ranks, self.plain.first).problems
        return (
            bool(output.compare_printed(ours, theirs))
            or self.ours.written != self.plain.written
            or bool(wrong)
        )

    def by_itself(self) -> Verdict | None:
        """Return a verdict if two plain runs differ, so that the session can't be judged."""
        again = self.lab.plain(again=1)
        if again.status:
            return report.of_plain(again)
        drifted = self.lab.compared(again, self.plain).beyond()
        mixed = samples.compare([again.first], self.plain.first).problems
        return report.not_deterministic(drifted, mixed) if drifted or mixed else None

    def _judged(self, found: Comparison) -> tuple[Comparison, str]:
        """Compare in float64, or with the loop's drift; return that, and a note on rounding."""
        if found.dtype in FLOATS_OF_32_BITS and not self.lab.request.float64:
            double = self.lab.in_float64().compare()
            if double is not None and double.steps == found.steps and double.beyond():
                found = double
            else:
                self.lab.in_float64(False)
                if double is not None and double.steps == found.steps:
                    return double, report.amplified(found, double)
        self.lab.drift = self._drift()
        again = self.lab.compared(self.lab.session(), self.lab.plain())
        return again, "" if again.beyond() else report.DRIFTED

    def _drift(self) -> Drift:
        terms = max((event["terms"] for event in self.plain.first.of("backward")), default=1)
        disturbed = self.lab.plain(change=search.disturb(terms))
        if disturbed.status:
            return {}
        return search.drift(self.lab.compared(disturbed, self.lab.plain()))


def verify(
    script: str | Path,
    *arguments: object,
    steps: int | str = 20,
    float64: bool = False,
    cwd: str | Path = ".",
    **options: object,
) -> Verdict:
    """Run a script without and with a session, and compare every step, as ``torchbus verify`` does.

    Both runs are separate processes, so the state of this process does not matter.

    Args:
        script: the path of the script. ``arguments`` are the script's.
        steps: real steps of each optimizer to compare, or "all".
        float64: run both in double precision.
        cwd: the script's working folder, which is not written to.
        options: options of the session. The defaults are ``strategy="ddp"``, ``devices=2`` and
            ``batch="global"``.

    Raises:
        UsageError: for invalid options.
    """
    flags = [f"--steps={steps}", *["--float64"] * float64]
    flags += [word for name, value in options.items() for word in ("-o", f"{name}={value!r}")]
    argv = ["verify", "--json", *flags, "--", str(script), *map(str, arguments)]
    code = f"from torchbus_cli.main import main; raise SystemExit(main({argv}))"
    command = bootstrap.command(code)
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if not ended.stdout.startswith("{"):
        raise UsageError(
            (ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]
        )
    return report.loads(ended.stdout)
