"""The rules, and the loops that try them."""

from __future__ import annotations

from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.rules import (
    evaluation,
    exits,
    gradients,
    models,
    numbers,
    scripts,
    seen,
    states,
    windows,
)

RULES: tuple[Rule, ...] = (
    *numbers.RULES,
    *gradients.RULES,
    *windows.RULES,
    *models.RULES,
    *states.RULES,
    *evaluation.RULES,
    *exits.RULES,
    *seen.RULES,
    *scripts.RULES,
)


def find(name: str) -> Rule:
    """Return the rule of that name. Raises LookupError with the names that exist."""
    for rule in RULES:
        if rule.name == name:
            return rule
    raise LookupError(f"no rule {name!r}; there are {', '.join(map(str, RULES))}")
