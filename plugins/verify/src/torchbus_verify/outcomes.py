"""Turns observations into the verdict and its text."""

from __future__ import annotations

from torchbus_verify.causes.cause import Cause
from torchbus_verify.causes.search import describe
from torchbus_verify.compare.difference import Comparison, Difference
from torchbus_verify.laboratory import Laboratory
from torchbus_verify.report import INHERENT, NOT_COMPARED, SAME, WRONG, Verdict
from torchbus_verify.runs import inside
from torchbus_verify.runs.run import Run

DRIFTED = (
    "a plain run with rounding noise in its gradients drifted as far: the loop amplifies"
    " rounding, and the differences are no larger"
)
ASKS = (
    "not compared: the script asks for input, and there is no terminal. Give it its answers as"
    " arguments"
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


def of_plain(run: Run) -> Verdict | None:
    """Return why the plain run can't be the reference; None if it can."""
    if run.outside:
        return _outside(run)
    if run.status:
        asks = "EOFError" in run.failure
        return Verdict(NOT_COMPARED, ASKS if asks else FAILS, traceback=run.failure)
    if not run.first.of("step"):
        return Verdict(NOT_COMPARED, STOPS if run.first.of("backward") else NO_BACKWARD)
    return None


def of_session(run: Run) -> Verdict | None:
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

    ``by_parts``: with whole batches on every rank, no run fails.
    """
    first = next((one for one in found.beyond() if one.kind != "order"), None)
    before = () if first is None else (f"before that, {describe(first)}",)
    return (*before, BY_PARTS) if by_parts else before


def _outside(run: Run) -> Verdict:
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
