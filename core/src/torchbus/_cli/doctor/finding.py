"""What the doctor finds out about one thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchbus._cli.table import table


@dataclass(frozen=True)
class Finding:
    """``problems`` say what is wrong and what to do; ``hints`` what may become wrong."""

    name: str
    facts: Mapping[str, object]
    problems: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The facts in one paragraph, then each problem and hint, marked."""
        facts = ", ".join(f"{name} {'none' if value is None else value}" for name, value in self.facts.items())
        marked = [("  WRONG", text) for text in self.problems] + [("  hint", text) for text in self.hints]
        return table([(label.ljust(12), text) for label, text in [(self.name, facts or "none"), *marked]])
