"""What the doctor finds out about one part of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchbus._cli.table import table


@dataclass(frozen=True)
class Finding:
    """One finding.

    ``problems``: what is wrong, and what to do.
    ``hints``: what may go wrong later.
    """

    name: str
    facts: Mapping[str, object]
    problems: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Format the facts as one paragraph, then each problem and hint with a mark."""
        facts = ", ".join(
            f"{name} {'none' if value is None else value}" for name, value in self.facts.items()
        )
        marked = [("  WRONG", text) for text in self.problems] + [
            ("  hint", text) for text in self.hints
        ]
        return table(
            [(label.ljust(12), text) for label, text in [(self.name, facts or "none"), *marked]]
        )
