"""Finds known values however they are written: escaped, encoded, quoted, spaced or wrapped.

Texts and values are compared by their letters and digits alone, after escapes are read.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator

ESCAPED = (
    r"(?:\x1b|\\+(?:x1b|u001b|033|e))\[[\d;]*m"  # a colour
    r"|\\+[nrtbfav0](?![0-9A-Fa-f]{2})"
    r"|\\+x[0-9A-Fa-f]{2}|\\+u[0-9A-Fa-f]{4}|%(?:25){0,3}[0-9A-Fa-f]{2}"
    r"|&\#(?:\d{1,6}|[xX][0-9A-Fa-f]{1,6});|&[a-zA-Z]{2,8};"
)
PART = re.compile(rf"(?P<escape>{ESCAPED})|[0-9A-Za-z]+")
READ = re.compile(ESCAPED)
CODE = re.compile(
    r"\\+[xu](?P<hex>\w+)|%(?:25)*(?P<percent>\w\w)|&#(?:[xX](?P<entity>\w+)|(?P<number>\d+));"
)
SHORTEST, LONGEST, LONGEST_WORD = 10, 4_096, 8
"""Shorter values, and those of short words, would also be found across the words of a sentence."""


def bare(text: str) -> str:
    """Return the letters and digits of a text, in lower case."""
    return "".join(re.findall("[0-9A-Za-z]+", READ.sub(_read, text))).lower()


def bare_forms(value: str) -> set[str]:
    """Return what to look for in bare texts: the value, and its encodings."""
    if len(value) > LONGEST:
        return set()
    plain, data = bare(value), value.encode(errors="surrogatepass")
    found = {form for form in map(bare, _encoded(data)) if len(form) >= SHORTEST}
    longest = max(re.findall("[0-9A-Za-z]*", READ.sub("-", value)), key=len)
    is_mixed = not plain.isdigit() and not plain.isalpha()
    is_one = len(longest) >= LONGEST_WORD and len(plain) >= SHORTEST and is_mixed
    return found | ({plain} if is_one else set())


def _encoded(data: bytes) -> Iterator[str]:
    yield data.hex()
    yield base64.b32encode(data).decode()
    yield base64.b85encode(data).decode()
    for whole in (data, base64.b64encode(data)):
        for before in (0, 1, 2):  # it may stand behind other bytes, as in "user:password"
            first, end = -(-8 * before // 6), 8 * (before + len(whole)) // 6
            yield base64.b64encode(bytes(before) + whole).decode()[first:end]


def pattern(values: Iterable[str]) -> re.Pattern[str] | None:
    """Return the pattern that finds the values in a bare text; None without values."""
    forms = sorted({form for value in values for form in bare_forms(value)}, key=len, reverse=True)
    return re.compile("|".join(forms)) if forms else None


def hide(text: str, finds: re.Pattern[str] | None, hidden: str) -> str:
    """Replace each value that the pattern finds, with all that stands between its letters."""
    if finds is None or finds.search(bare(text)) is None:
        return text
    letters, places = _letters(text)
    shown, done = [], 0
    for found in finds.finditer(letters):
        shown += [text[done : places[found.start()][0]], hidden]
        done = places[found.end() - 1][1]
    return "".join([*shown, text[done:]])


def _letters(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the bare text, and where in the text each of its letters stands."""
    letters, places = [], []
    for found in PART.finditer(text):
        if found["escape"] is None:
            letters.append(found[0].lower())
            places += [(at, at + 1) for at in range(*found.span())]
        elif letter := _read(found).lower():
            letters.append(letter)
            places.append(found.span())
    return "".join(letters), places


def _read(found: re.Match[str]) -> str:
    """Return the character of an escape if it is a letter or digit, otherwise ""."""
    code = CODE.fullmatch(found[0])
    if code is None:
        return ""
    number = int(code["number"]) if code["number"] else int(next(filter(None, code.groups())), 16)
    letter = chr(number) if number < 128 else ""
    return letter if letter.isalnum() else ""
