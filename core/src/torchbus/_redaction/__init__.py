"""What must not be written down: one redactor for configurations, errors, warnings, ``explain()``, logs, reports and trackers."""

from __future__ import annotations

from torchbus._redaction.redactor import Redactor
from torchbus._redaction.words import HIDDEN

__all__ = ["HIDDEN", "Redactor", "redacted", "redacted_source"]


def redacted(text: str) -> str:
    """A text without secrets, as far as the environment, the command line and the text itself tell of them."""
    return Redactor().text(text)


def redacted_source(text: str) -> str:
    """The same of a traceback, whose lines of code (``login(key=key)``) stay as they are: only values are hidden."""
    return Redactor().values(text)
