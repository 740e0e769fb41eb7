"""Make text from files safe to show: on a page, and on a terminal, which obeys control codes."""

from __future__ import annotations

import re
from typing import Any

NOT_SHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
REPLACED = "\ufffd"
LONGEST = 2_000


def showable(text: str) -> str:
    """Remove control characters, marks of text direction and halves of characters.

    Of a long text, keep the beginning.
    """
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}..."
    return NOT_SHOWN.sub(REPLACED, text) if not text.isascii() or not text.isprintable() else text


def shown(value: Any) -> Any:
    """Make every text in plain JSON safe to show."""
    if isinstance(value, dict):
        return {showable(str(key)): shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, int) and abs(value) > 10**300:
        return "a very large number"
    return showable(value) if isinstance(value, str) else value
