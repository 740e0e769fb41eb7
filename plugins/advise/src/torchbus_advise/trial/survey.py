"""The trials of one script: with fake tensors in each precision, and with real ones if it fits
here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torchbus.plugin import TorchbusError

from torchbus_advise.estimate.plans import Installed
from torchbus_advise.observing.facts import Facts
from torchbus_advise.trial.here import too_much
from torchbus_advise.trial.outcome import Outcome, Request
from torchbus_advise.trial.run import run

TIMED_S = 10.0
LOWER = {"bf16": "bf16-mixed", "gathered": "bf16-true"}
"""The precision of a session under which a trial shows the activations of a plan's."""


class NoStep(TorchbusError):
    """The script did not come to an optimizer step. ``trace``: what it raised."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


@dataclass(frozen=True)
class Survey:
    """``facts``: by precision; "32" is as the script is. ``real``: what the run with real values
    showed, if there was one. ``notes``: what was not done, and why."""

    facts: Mapping[str, Facts]
    real: Facts | None
    notes: list[str]


def survey(
    request: Request, there: Installed, tensors: str, timeout_s: float, say: Callable[[str], None]
) -> Survey:
    """``tensors``: "fake", "real" or "auto". Raises NoStep."""
    trial = _Trials(request, timeout_s, say)
    notes: list[str] = []
    fake = Outcome() if tensors == "real" else trial.fake()
    facts: dict[str, Facts] = {}
    if fake.facts is not None:
        facts["32"] = fake.facts
        if "precision" in there.options and not fake.facts.own_precision:
            lower = {name: trial.fake(precision=word).facts for name, word in LOWER.items()}
            facts |= {name: found for name, found in lower.items() if found is not None}
    reason = too_much(fake.facts) if fake.facts is not None and tensors == "auto" else ""
    if reason or tensors == "fake":
        notes += [f"not run with real values: {reason}"] if reason else []
        real = Outcome()
    else:
        real = trial.real(lint="lint" in there.options)
    if not facts and real.facts is None:
        raise _no_step(request.name, real if tensors != "fake" else fake)
    if not facts and fake.error:
        notes.append(f"fake tensors do not carry this script ({fake.error.splitlines()[0]})")
    return Survey(facts or {"32": real.facts}, real.facts, notes)  # type: ignore[dict-item]


class _Trials:
    def __init__(self, request: Request, timeout_s: float, say: Callable[[str], None]) -> None:
        self._request, self._timeout_s, self._progress = request, timeout_s, say

    def fake(self, **options: object) -> Outcome:
        words = f" under {options['precision']}" if options else ""
        self._progress(f"running the first {self._request.steps} steps with fake tensors{words}")
        return self._run(replace(self._request, is_fake=True, options=dict(options)))

    def real(self, lint: bool) -> Outcome:
        self._progress(
            f"running the first steps with real values, for up to {TIMED_S:.0f} s of steps"
        )
        options = {"lint": True} if lint else {}
        return self._run(replace(self._request, is_fake=False, options=options, then_s=TIMED_S))

    def _run(self, request: Request) -> Outcome:
        return run(request, self._timeout_s, self._progress)


def _no_step(name: str, outcome: Outcome) -> NoStep:
    if outcome.error:
        return NoStep(f"{name} failed before its first step: {outcome.error}", outcome.trace)
    if not outcome.backwards:
        return NoStep(f"{name} ended and never called backward: there is no training step")
    return NoStep(
        f"{name} ended after {outcome.backwards} backwards without a step of an optimizer: pass the"
        " arguments with which it trains"
    )
