"""The verdict on two runs: what was observed as text, on the terminal, as JSON, as HTML."""

from __future__ import annotations

import json
import math
import textwrap
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

from torchbus_redaction.redactor import redacted_output
from torchbus_verify.causes.cause import Cause
from torchbus_verify.causes.search import describe
from torchbus_verify.compare.difference import Comparison, Difference
from torchbus_verify.runs import inside
from torchbus_verify.runs.run import EndedRun
from torchbus_verify.variants import Laboratory


def dumps(verdict: Verdict) -> str:
    """Return a verdict as JSON. Infinite differences (another shape, no gradient) are null."""
    facts = asdict(verdict) | {"same": verdict.same}
    return json.dumps(_finite(facts), indent=2)


def loads(text: str) -> Verdict:
    facts: dict[str, Any] = json.loads(text)
    facts.pop("same")
    facts["causes"] = tuple(Cause(**one) for one in facts["causes"])
    facts["notes"] = tuple(facts["notes"])
    facts["places"] = tuple(_difference(one) for one in facts["places"])
    facts["first"] = facts["first"] and _difference(facts["first"])
    facts["largest"] = math.inf if facts["largest"] is None else facts["largest"]
    return Verdict(**facts)


def _difference(facts: dict[str, Any]) -> Difference:
    return Difference(
        **{**facts, "relative": math.inf if facts["relative"] is None else facts["relative"]}
    )


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def fit_to_show(value: Any) -> Any:
    """Return a verdict, or a part of it, without the secrets in what the script has written."""
    if isinstance(value, str):
        return redacted_output(value)
    if isinstance(value, tuple):
        return tuple(map(fit_to_show, value))
    if is_dataclass(value) and not isinstance(value, type):
        parts = {one.name: fit_to_show(getattr(value, one.name)) for one in fields(value)}
        return replace(value, **parts)
    return value


SAME, INHERENT, WRONG, NOT_COMPARED = range(4)


@dataclass(frozen=True)
class Verdict:
    """The verdict about a script.

    ``status`` is 0 for the same numbers, 1 for numbers that differ by the nature of the strategy, 2
    for wrong ones, and 3 if the runs could not be compared.
    """

    status: int
    headline: str
    steps: int = 0
    models: int = 0
    dtype: str = ""
    largest: float = 0.0
    """The largest relative difference of any tensor in any step."""
    allowed: float = 0.0
    """The difference that rounding allows at that place."""
    first: Difference | None = None
    """Where the runs begin to differ."""
    causes: tuple[Cause, ...] = ()
    notes: tuple[str, ...] = ()
    traceback: str = ""
    """The traceback of a run that failed."""
    runs: int = 0
    seconds: float = 0.0
    seconds_compared: float = 0.0
    """The seconds of the two runs that are compared."""
    places: tuple[Difference, ...] = field(default=(), repr=False)

    @property
    def same(self) -> bool:
        """Whether the numbers are the same within rounding."""
        return self.status == SAME

    @property
    def cause(self) -> str:
        """The name of the first cause; "" if there is none."""
        return self.causes[0].name if self.causes else ""

    def __str__(self) -> str:
        lines = [self.headline]
        for cause in self.causes:
            lines += _entry("cause", f"{cause.name}: {cause.found}")
            lines += _entry("remedy" if not cause.inherent else "what to do", cause.remedy)
        for note in self.notes:
            lines += _entry("note", note)
        if self.traceback:
            lines += ["", self.traceback.rstrip()]
        return "\n".join(lines)


WIDTH = 96


def _entry(name: str, text: str) -> list[str]:
    head = f"  {name}: "
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent="    ", break_long_words=False
    )


DRIFTED = (
    "a plain run with rounding noise in its gradients drifted as far: the loop amplifies"
    " rounding, and the differences are no larger"
)
ASKS = (
    "not compared: the script asks for input, and there is no terminal. Give it its answers as"
    " arguments"
)
OBJECTS = (
    "not compared: the script begins a session with objects, which `torchbus verify` can't give to"
    " its runs. Verify the loop without that line, and pass options to the command"
)
FAILS = "not compared: the script fails without a session"
STOPS = "not compared: the script ends before its first optimizer step. Let it train longer"
NO_BACKWARD = (
    "not compared: the script never calls backward(). Steps by torch.autograd.grad and by hand"
    " can't be seen"
)
SHOWN = 3
BY_PARTS = (
    "with whole batches on every rank the script does not fail. So it needs something of its batch"
    " that a rank's part does not have: its size, say"
)


def of_plain(run: EndedRun) -> Verdict | None:
    """Return why the plain run can't be the reference; None if it can."""
    if run.outside:
        return _outside(run)
    if run.status:
        asks = "EOFError" in run.failure
        return Verdict(NOT_COMPARED, ASKS if asks else FAILS, traceback=run.failure)
    if not run.first.of("step"):
        return Verdict(NOT_COMPARED, STOPS if run.first.of("backward") else NO_BACKWARD)
    return None


def of_session(run: EndedRun) -> Verdict | None:
    """Return why the run under the session can't be compared; None if it can."""
    if run.outside:
        return _outside(run)
    if run.status:
        return Verdict(
            NOT_COMPARED,
            "not compared: the script fails only under the session",
            traceback=run.failure,
        )
    return None


def before_failing(found: Comparison, by_parts: bool) -> tuple[str, ...]:
    """Report a difference that precedes a failure.

    ``by_parts`` is True if no run fails with whole batches on every rank.
    """
    first = next((one for one in found.beyond() if one.kind != "order"), None)
    before = () if first is None else (f"before that, {describe(first)}",)
    return (*before, BY_PARTS) if by_parts else before


def _outside(run: EndedRun) -> Verdict:
    path = run.outside
    return Verdict(
        NOT_COMPARED,
        f"not compared: the script writes outside of its folder, to {path}, which two runs would"
        " share. Give it a relative path, as an argument or in the script",
    )


def not_deterministic(drifted: list[Difference], mixed: tuple[str, ...]) -> Verdict:
    where = describe(drifted[0]) if drifted else mixed[0]
    return Verdict(
        NOT_COMPARED,
        "not compared: the script is not deterministic. Of two plain runs with the same seed,"
        f" {where}. Seed every generator that it makes, and avoid operations that torch lists as"
        " nondeterministic",
        first=drifted[0] if drifted else None,
    )


def amplified(found: Comparison, double: Comparison) -> str:
    return (
        f"the differences of {found.dtype} are rounding that the loop amplifies: in float64 they go"
        f" from {found.largest:.0e} to {double.largest:.0e}"
    )


def summed_up(
    lab: Laboratory,
    found: Comparison,
    first: Difference | None,
    causes: list[Cause],
    notes: list[str],
) -> Verdict:
    status = SAME if not causes else INHERENT if all(one.inherent for one in causes) else WRONG
    at = max(found.places, key=lambda one: one.relative, default=None)
    return Verdict(
        status,
        _headline(lab, found, first, causes),
        found.steps,
        found.models,
        found.dtype,
        found.largest,
        at.allowed if at else 0.0,
        first,
        tuple(causes),
        tuple(note for note in notes if note),
        places=tuple(found.places),
    )


def _headline(
    lab: Laboratory, found: Comparison, first: Difference | None, causes: list[Cause]
) -> str:
    if first is not None:
        versus = inside.describe_plain(lab.request)
        return (
            f"different from {versus} from {describe(first)} ({found.dtype}; rounding explains"
            f" {first.allowed:.0e})"
        )
    models = f"{found.models} model{'s' if found.models != 1 else ''}"
    seen = f"{found.steps} step{'s' if found.steps != 1 else ''}, {models}"
    size = (
        f"largest relative difference {found.largest:.0e} ({found.dtype}: the rounding of sums)"
        if found.largest
        else "bit for bit"
    )
    numbers = f"the same numbers: {seen}, {size}"
    return f"{numbers}; but something else differs" if causes else numbers
