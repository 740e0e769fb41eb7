"""Finds secrets in a text by their form.

These forms are ``name=value``, flags, passwords in addresses, and tokens of well-known services.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchbus._redaction.words import HIDDEN, Speaks, hides, speaks

QUOTED = r"""[bru]{0,2}"(?:[^"\\]|\\.)*"|[bru]{0,2}'(?:[^'\\]|\\.)*'|\\+["'][^"'\\]*\\+["']"""
NAME = r"(?<![\w.-])(?P<name>-{0,2}[^\W\d][\w.-]*)"
BETWEEN = r"""(?P<between>\\*["']?\]?\s{0,4}(?:=>|:=|[=:])\s{0,4})"""
ASSIGNED = re.compile(NAME + BETWEEN)
VALUE = re.compile(rf"""{QUOTED}|[^\s,;&"'<>]+""")
NAMED = re.compile(r"([+~-]*[^\W\d][\w.@/-]*)=(.*)", re.DOTALL)
QUOTES_AROUND = re.compile(r"""([bru]{0,2}\\*["'])(.*?)(\\*["'])""", re.DOTALL)
QUOTES = ("'", '"', "\\")
FLAG = re.compile(
    rf"(?<![\w-])(?P<name>--?[A-Za-z][\w.-]*)(?P<between>\s{{1,4}})(?P<value>{QUOTED}|[^\s\-\"'][^\s\"']*)"
)
ADDRESS = re.compile(
    r"""(?P<before>\b[a-zA-Z][\w+.-]{0,30}://)(?P<user>[^\s/:@"'<>?#]{0,300})(?P<password>:(?!\d{1,5}[/?#"',])\S{0,300})?(?=@)"""
)
BEARER = re.compile(
    r"(?P<before>\b(?:bearer|basic|token)[ \t]+)(?P<value>[\w.~+/-]{8,}=*)", re.IGNORECASE
)
GIVEN_AWAY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|https?://(?:hooks\.slack\.com|(?:ptb\.|canary\.)?discord(?:app)?\.com/api/webhooks|[\w.-]+\.webhook\.office\.com)/[^\s\"'<>]+"
    r"|\b(?:gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,}|xox[abeprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|AIza[\w-]{30,}|eyJ[\w-]{10,500}\.[\w-]{10,}\.[\w-]*)",
    re.DOTALL,
)
SIGNED = re.compile(
    r"(?P<before>[?&](?:X-Amz-Signature|sig|signature|code)=)[^\s&#\"'<>]+", re.IGNORECASE
)
NOTHING = ("", "None", "True", "False", "null", "true", "false", "...")
OPENING, CLOSING = ("(", "[", "{"), (")", "]", "}")
LONG_USER, LONGEST_BRACKET = 16, 10_000


def without_assigned(text: str) -> str:
    """Hide values whose names mean secrets.

    A value that is not secret may contain one that is: ``C(d={'key': 'x'})``.
    """
    told, done = [], 0
    for found, value in _assigned(text):
        told += [text[done : found.end()], _in_quotes(value)]
        done = found.end() + len(value)
    return FLAG.sub(_flagged, "".join([*told, text[done:]]))


def without_given_away(text: str) -> str:
    """Hide passwords in addresses, signatures, and values whose own form shows a secret."""
    text = (
        ADDRESS.sub(_address, GIVEN_AWAY.sub(HIDDEN, text))
        if "://" in text or GIVEN_AWAY.search(text)
        else text
    )
    return BEARER.sub(_bearer, SIGNED.sub(rf"\g<before>{HIDDEN}", text))


def assigned(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of secrets in a text."""
    yield from ((found["name"], _bare(value)) for found, value in _assigned(text))
    for found in FLAG.finditer(text):
        if is_hidden(found["name"], _bare(found["value"]), True):
            yield found["name"], _bare(found["value"])


def named(word: str, before: str) -> tuple[str, str]:
    """Return the name and value of a word of a command line; ("", word) if it has no name.

    The word is ``name=value``, or it follows a flag.
    """
    if (
        before.startswith("-")
        and "=" not in before
        and not word.startswith("--")
        and speaks(before) is not Speaks.NOT
    ):
        return before, word
    found = NAMED.fullmatch(word)
    return (found[1], found[2]) if found else ("", word)


def passwords(text: str) -> Iterator[str]:
    """Yield the passwords of addresses in a text."""
    for found in ADDRESS.finditer(text) if "://" in text else ():
        if found["password"]:
            yield found["password"][1:]


def _assigned(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield the matches of names that mean secrets, and the secret after each."""
    done = 0
    for found in ASSIGNED.finditer(text):
        value = (
            _after(found, text)
            if found.start() >= done and speaks(found["name"]) is not Speaks.NOT
            else ""
        )
        prose = (
            ":" in found["between"]
            and value == _bare(value)
            and not found["between"].startswith(QUOTES)
        )
        if is_hidden(found["name"], _bare(value), prose):
            yield found, value
            done = found.end() + len(value)


def _after(found: re.Match[str], text: str) -> str:
    if text.startswith(OPENING, found.end()):
        return _bracket(found["name"], text[found.end() : found.end() + LONGEST_BRACKET])
    value = VALUE.match(text, found.end())
    return _split(value[0]) if value is not None else ""


def _bracket(name: str, text: str) -> str:
    """Return a list or dict up to its end if its name surely means secrets, otherwise "".

    Under any other name, the names inside the list or dict tell more.
    """
    depth = 0
    for place, letter in enumerate(text if speaks(name) is Speaks.SURELY else ""):
        depth += (letter in OPENING) - (letter in CLOSING)
        if depth == 0:
            return text[: place + 1]
    return text if depth else ""


def _flagged(found: re.Match[str]) -> str:
    return (
        f"{found['name']}{found['between']}{HIDDEN}"
        if is_hidden(found["name"], _bare(found["value"]), False)
        else found[0]
    )


def is_hidden(name: str, value: str, prose: bool) -> bool:
    """Return whether to hide a value of this name.

    ``prose``: the text is like "the key: a word". Then an ordinary word stays.
    """
    if value in NOTHING or value.startswith(HIDDEN):
        return False
    if (
        prose
        and speaks(name) is Speaks.PERHAPS
        and len(value) < LONG_USER
        and not (len(value) >= 6 and any(map(str.isdigit, value)))
    ):
        return False
    return hides(name, _number(value))


def _number(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(text) if len(text) < 100 else text
        except ValueError:
            continue
    return text


def _split(value: str) -> str:
    """Cut an unquoted value at the bracket that closes around it, as in ``Obj(key=x)``."""
    depth = 0
    for place, letter in enumerate(value if value == _bare(value) else ""):
        depth += (letter in OPENING) - (letter in CLOSING)
        if depth < 0:
            return value[:place]
    return value


def _bare(value: str) -> str:
    """Remove the quotes around a value."""
    found = QUOTES_AROUND.fullmatch(value)
    return found[2] if found else value


def _in_quotes(value: str) -> str:
    found = QUOTES_AROUND.fullmatch(value)
    return f"{found[1]}{HIDDEN}{found[3]}" if found else HIDDEN


def _address(found: re.Match[str]) -> str:
    """Hide the password of an address, or a token in place of the user; keep the user."""
    if found["password"]:
        return f"{found['before']}{found['user']}:{HIDDEN}"
    return f"{found['before']}{HIDDEN}" if len(found["user"]) >= LONG_USER else found[0]


def _bearer(found: re.Match[str]) -> str:
    value = found["value"]
    looks_so = any(map(str.isdigit, value)) or value.endswith("=") or len(value) >= 20
    return f"{found['before']}{HIDDEN}" if looks_so else found[0]
