"""Finds values that are known to be secret, wherever they appear."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

SHORTEST, LONGEST = 4, 100_000
SHORTEST_INSIDE = 8
SHORTEST_NUMBER = 6
COMMON = re.compile(
    "true false none null yes auto default hidden enabled disabled test tests python local"
    " localhost root admin user main train training model loss cuda gloo nccl required optional"
    " basic bearer token secret password key keys file unset empty".replace(" ", "|")
)


def worth_hiding(value: str, sure: bool) -> bool:
    """Return whether to hide the value wherever it appears.

    A common word is hidden only under its own name. If the name is not ``sure`` to mean a secret,
    the same holds for every value that does not look like a secret.
    """
    if (
        not SHORTEST <= len(value) <= LONGEST
        or COMMON.fullmatch(value.lower())
        or (value.isdigit() and len(value) < SHORTEST_NUMBER)
    ):
        return False
    return sure or (
        len(value) >= SHORTEST_INSIDE
        and any(map(str.isdigit, value))
        and any(map(str.isalpha, value))
    )


def spellings(value: str) -> set[str]:
    """Return the value as text, JSON, ``repr``, addresses and base64 write it, and its lines."""
    found = {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        *_encoded(value),
    }
    return found | {
        line.strip()
        for line in value.splitlines()
        if len(line.strip()) >= 2 * SHORTEST_INSIDE and "-----" not in line
    }


def pattern(values: Iterable[str]) -> re.Pattern[str] | None:
    """Return the pattern that finds the values, the longest first; None without values.

    It finds short values, and those of only letters or only digits, only as whole words.
    """
    told = sorted(
        {spelling for value in values for spelling in spellings(value)}, key=len, reverse=True
    )
    return re.compile("|".join(map(_one, told))) if told else None


def _one(value: str) -> str:
    alone = len(value) < SHORTEST_INSIDE or value.isalpha() or value.isdigit()
    return rf"(?<![^\W_]){re.escape(value)}(?![^\W_])" if alone else re.escape(value)


def _encoded(value: str) -> Iterator[str]:
    data = value.encode(errors="surrogatepass")
    yield from (quote(data, safe=""), quote(data), quote_plus(data))
    if len(data) < SHORTEST_INSIDE:
        return
    for code in (base64.b64encode, base64.urlsafe_b64encode):
        yield code(data).decode().rstrip("=")
        for before in (1, 2):  # it may stand behind other bytes, as in "user:password"
            first, end = -(-8 * before // 6), 8 * (before + len(data)) // 6
            yield code(bytes(before) + data).decode()[first:end]
