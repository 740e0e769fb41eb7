"""A verdict as JSON, and back."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from torchbus_verify.causes.cause import Cause
from torchbus_verify.compare.difference import Difference
from torchbus_verify.report.verdict import Verdict


def dumps(verdict: Verdict) -> str:
    """Infinite differences (another shape, no gradient) are null."""
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
