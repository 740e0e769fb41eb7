"""Hides secrets in everything that torchbus writes.

One redactor serves configurations, errors, warnings, ``explain()``, logs, reports and trackers.
"""

from __future__ import annotations

from torchbus._redaction.redactor import Redactor
from torchbus._redaction.words import HIDDEN

__all__ = ["HIDDEN", "Redactor", "redacted", "redacted_source"]


def redacted(text: str) -> str:
    """Return a text without secrets.

    It finds the secrets of the environment and the command line, and those that the text itself
    shows to be secret.
    """
    return Redactor().text(text)


def redacted_source(text: str) -> str:
    """Return a traceback without secret values; lines of code such as ``login(key=key)`` stay."""
    return Redactor().values(text)


def of_session(session: object) -> Redactor:
    """Return a redactor, which learns the secrets that a session meets."""
    return Redactor()
