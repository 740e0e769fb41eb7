"""Hides secrets in everything that torchbus writes.

One redactor serves configurations, errors, warnings, ``explain()``, logs, reports and trackers.
"""

from __future__ import annotations

import re
import traceback

from torchbus._redaction.redactor import Redactor
from torchbus._redaction.words import HIDDEN

__all__ = ["HIDDEN", "Redactor", "printable", "redacted", "redacted_traceback"]


# what moves the cursor, changes colours or the direction of a line, or can't be printed at all
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def redacted(text: str) -> str:
    """Return a text that is fit to be shown: without secrets, and without control characters.

    It finds the secrets of the environment and the command line, and those that the text itself
    shows to be secret.
    """
    return printable(Redactor().text(text))


def redacted_traceback(error: BaseException) -> str:
    """Return a traceback that is fit to be shown. Code such as ``login(key=key)`` stays."""
    redactor = Redactor()
    return printable(
        "".join(
            (redactor.code if part.lstrip(" |+-").startswith('File "') else redactor.text)(part)
            for part in traceback.format_exception(error)
        )
    )


def printable(text: str) -> str:
    """Escape the characters that control a terminal, and those that it can't print."""
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def of_session(session: object) -> Redactor:
    """Return a redactor, which learns the secrets that a session meets."""
    return Redactor()
