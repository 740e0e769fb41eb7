"""Finds known values in any spelling: escaped, encoded, quoted, spaced or wrapped.

It compares only letters and digits, after it has decoded escapes. For a value of short words, the
other characters must agree too.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable
from typing import NamedTuple

ESCAPED = (
    r"(?:\x1b|\\+(?:x1b|u001b|033|e))\[[\d;]*m"  # a colour
    r"|\\+[nrtbfav0](?![0-9A-Fa-f]{2})"
    r"|\\+x[0-9A-Fa-f]{2}|\\+u(?:[0-9A-Fa-f]{4}|\{[0-9A-Fa-f]{1,6}\})|\\+U[0-9A-Fa-f]{8}"
    r"|%(?:25){0,3}[0-9A-Fa-f]{2}"
    r"|&\#(?:\d{1,6}|[xX][0-9A-Fa-f]{1,6});|&[a-zA-Z]{2,8};"
)
PART = re.compile(rf"(?P<escape>{ESCAPED})|[0-9A-Za-z]+")
READ = re.compile(ESCAPED)
CODE = re.compile(
    r"\\+[xuU]\{?(?P<hex>\w+)\}?|%(?:25)*(?P<percent>\w\w)|&#(?:[xX](?P<entity>\w+)|(?P<number>\d+));"
)
SHORTEST, SHORTEST_OF_SHORT, SHORTEST_OF_LETTERS, LONGEST, LONGEST_WORD = 10, 8, 12, 4_096, 8
"""Shorter values, and those of short words, would also be found across the words of a sentence."""
LOOKS_ENCODED = re.compile(r"\d{16,}|(?=\d*[a-z])[0-9a-f]{10,}|(?=[0-9a-f]*[g-z]).{8,}")
BETWEEN = re.compile(r"[ \t]*\r?\n[ \t>]*|[ \t]*[|│┃][ \t]*|, ?|[\\\"'`\u00ad\u200b-\u200d\u2060]")
"""Characters that quote, escape or break a value, and are not part of it."""


class Spelled(NamedTuple):
    """A pattern of bare texts. ``exact`` has, by bare form, whole forms that must also match."""

    finds: re.Pattern[str]
    exact: dict[str, set[str]]


def bare(text: str) -> str:
    """Return the letters and digits of a text, in lower case."""
    return "".join(re.findall("[0-9A-Za-z]+", READ.sub(_read, text))).lower()


def whole(text: str) -> str:
    """Return a text in lower case, without characters that quote, escape or break it."""
    return BETWEEN.sub("", READ.sub(_character, text)).lower()


def is_one(value: str) -> bool:
    """Return whether the letters and digits of a value identify it."""
    plain, words = bare(value), re.findall("[0-9A-Za-z]*", READ.sub("-", value))
    is_mixed = not plain.isdigit() and not plain.isalpha()
    return is_mixed and len(plain) >= SHORTEST and max(map(len, words)) >= LONGEST_WORD


def is_exact(value: str) -> bool:
    """Return whether all characters of a value together identify it."""
    plain = bare(value)
    shortest = SHORTEST_OF_LETTERS if plain.isalpha() else SHORTEST_OF_SHORT
    return len(plain) >= shortest and not plain.isdigit()


def encoded(value: str) -> set[str]:
    """Return the encodings of a value as bare texts."""
    data, escaped = value.encode(errors="surrogatepass"), json.dumps(value)[1:-1].encode()
    forms = [data.hex(), base64.b32encode(data).decode(), base64.b85encode(data).decode()]
    forms += ["".join(map(str, data)), "".join(f"0x{byte:02x}" for byte in data)]
    for inside in {data, escaped, base64.b64encode(data)}:
        for before in (0, 1, 2):  # other bytes may precede it, as in "user:password"
            first, end = -(-8 * before // 6), 8 * (before + len(inside)) // 6
            forms.append(base64.b64encode(bytes(before) + inside).decode()[first:end])
    return {form for form in map(bare, forms) if LOOKS_ENCODED.fullmatch(form)}


def pattern(values: Iterable[str]) -> Spelled | None:
    """Return the pattern that finds the values in a bare text; None without values."""
    forms: set[str] = set()
    exact: dict[str, set[str]] = {}
    for value in values:
        if len(value) <= LONGEST:
            forms |= encoded(value)
            if is_one(value):
                forms.add(bare(value))
            elif is_exact(value):
                exact.setdefault(bare(value), set()).add(_core(value))
    exact = {form: wholes for form, wholes in exact.items() if form not in forms}
    ordered = sorted({*forms, *exact}, key=len, reverse=True)
    return Spelled(re.compile("|".join(ordered)), exact) if ordered else None


def _core(value: str) -> str:
    """Return the value from its first letter or digit to its last one, as it is compared."""
    places = _letters(value)[1]
    return whole(value[places[0][0] : places[-1][1]])


def hide(text: str, spelled: Spelled | None, hidden: str) -> str:
    """Replace each value that is found, including all characters between its letters."""
    if spelled is None or spelled.finds.search(bare(text)) is None:
        return text
    letters, places = _letters(text)
    shown, done, at = [], 0, 0
    while found := spelled.finds.search(letters, at):
        first, end = places[found.start()][0], places[found.end() - 1][1]
        wanted, at = spelled.exact.get(found[0]), found.start() + 1
        if wanted is None or whole(text[first:end]) in wanted:
            shown += [text[done:first], hidden]
            done, at = end, found.end()
    return "".join([*shown, text[done:]])


def _letters(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the bare text, and the place in the text of each of its letters."""
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
    letter = _character(found)
    return letter if len(letter) == 1 and letter.isascii() and letter.isalnum() else ""


def _character(found: re.Match[str]) -> str:
    """Return the character of an escape; "" for a colour and the end of a line."""
    code = CODE.fullmatch(found[0])
    if code is None:
        return html.unescape(found[0]) if found[0].startswith("&") else ""
    number = int(code["number"]) if code["number"] else int(next(filter(None, code.groups())), 16)
    return chr(number) if number < 0x110000 else ""
