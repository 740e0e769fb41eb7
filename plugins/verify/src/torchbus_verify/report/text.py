"""A verdict on one screen."""

from __future__ import annotations

import textwrap

from torchbus_verify.causes.cause import Cause

WIDTH = 96


def text(
    headline: str, causes: tuple[Cause, ...], notes: tuple[str, ...], traceback: str = ""
) -> str:
    lines = [headline]
    for cause in causes:
        lines += _entry("cause", f"{cause.name}: {cause.found}")
        lines += _entry("remedy" if not cause.inherent else "what to do", cause.remedy)
    for note in notes:
        lines += _entry("note", note)
    if traceback:
        lines += ["", traceback.rstrip()]
    return "\n".join(lines)


def _entry(name: str, words: str) -> list[str]:
    head = f"  {name}: "
    return textwrap.wrap(
        words, WIDTH, initial_indent=head, subsequent_indent="    ", break_long_words=False
    )
