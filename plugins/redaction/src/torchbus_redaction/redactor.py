"""Removes secrets and control characters from texts that a session prints, logs or stores."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import sys
import traceback
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

from torchbus_redaction import spelled, texts
from torchbus_redaction.texts import HIDDEN, Speaks, hides, speaks

# characters that move the cursor, change colours or a line's direction, or can't be printed
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
MARK = re.compile(r"^\[rank \d+\] ")
CODE = re.compile(r'[ |+-]*File "|  rank \d+ ')


def redacted(text: str) -> str:
    """Return a text for output: without secrets, and with control characters escaped.

    It hides the secrets of the environment and the command line, and parts of the text that look
    like secrets or are assigned to names of secrets.
    """
    return printable(Redactor().text(text))


def redacted_traceback(error: BaseException) -> str:
    """Return a traceback for output. Code such as ``login(key=key)`` is not hidden."""
    return redacted_output("".join(traceback.format_exception(error)))


def redacted_output(text: str) -> str:
    """Return a program's output without secrets, and with control characters escaped.

    In lines of code, as in a traceback or in a report of the ranks' positions, only known secrets,
    texts that look like secrets, and quoted texts after names of secrets are hidden.
    """
    redactor, is_code = Redactor(), False
    parts: list[tuple[bool, list[str]]] = []
    for line in text.splitlines(keepends=True):
        bare = MARK.sub("", line)
        is_code = bool(CODE.match(bare)) or (is_code and bare.startswith("    "))
        if not parts or parts[-1][0] != is_code:
            parts.append((is_code, []))
        parts[-1][1].append(line)
    shown = (
        (redactor.code if is_code else redactor.text)("".join(lines)) for is_code, lines in parts
    )
    return printable("".join(shown))


def printable(text: str) -> str:
    """Escape the characters that control a terminal, and those that it can't print."""
    return CONTROLS.sub(_escaped, text)


def one_line(text: str) -> str:
    """Escape every character that is not printable, such as a line break in a file's name."""
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(found: str | re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def of_session(session: object) -> Redactor:
    """Return a redactor, which learns secrets during the session."""
    return Redactor()


ESCAPED = re.compile(r"(\\[xuU])(\w+)")
SHORTEST, LONGEST = 4, 100_000
SHORTEST_INSIDE = 8
SHORTEST_NUMBER = 6
COMMON = re.compile(
    "true false none null yes auto default hidden enabled disabled test tests python local"
    " localhost root admin user main train training model loss cuda gloo nccl required optional"
    " basic bearer token secret password key keys file unset empty".replace(" ", "|")
)


def worth_hiding(value: str, sure: bool) -> bool:
    """Return whether to hide a value wherever it appears, and not only next to its name.

    A common or short word is hidden only next to its name. If the name is not ``sure`` to mean a
    secret, so is every value that does not look like one.
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
    """Return the spellings of a value in text, JSON, ``repr`` and addresses, and its lines."""
    found = {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        quote(value, safe="", errors="surrogatepass"),
        quote(value, errors="surrogatepass"),
        quote_plus(value, errors="surrogatepass"),
    }
    if not value.isascii():
        escaped = ascii(value)[1:-1]
        found |= {escaped, ESCAPED.sub(lambda one: one[1] + one[2].upper(), escaped)}  # for YAML
        found.add(repr(value.encode(errors="surrogatepass"))[2:-1])
        found.add(value.encode("ascii", "xmlcharrefreplace").decode())
    return found | {
        line.strip()
        for line in value.splitlines()
        if len(line.strip()) >= 2 * SHORTEST_INSIDE and "-----" not in line
    }


def pattern(values: Iterable[str]) -> re.Pattern[str] | None:
    """Return the pattern that finds the values, the longest first; None without values.

    Short values, and values of only letters or only digits, are found only as whole words.
    """
    reported = sorted(
        {spelling for value in values for spelling in spellings(value)}, key=len, reverse=True
    )
    return re.compile("|".join(map(_one, reported))) if reported else None


def _one(value: str) -> str:
    alone = len(value) < SHORTEST_INSIDE or value.isalpha() or value.isdigit()
    return rf"(?<![^\W_]){re.escape(value)}(?![^\W_])" if alone else re.escape(value)


def as_number(value: object) -> int | float | str | None:
    """Return any number as a Python number, and NaN and infinities as text; otherwise None."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else str(float(value))
    return None


def fields_of(value: object) -> Mapping[Any, object] | None:
    """Return the names and values of an object with fields; None for any other.

    Such objects are mappings, namespaces, dataclasses, named tuples, and objects of attrs or
    pydantic.
    """
    if isinstance(value, Mapping):
        return value
    if isinstance(value, type):
        return None
    if isinstance(value, Namespace | SimpleNamespace):
        return vars(value)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=False))
    if hasattr(type(value), "__attrs_attrs__"):
        declared = getattr(type(value), "__attrs_attrs__", ())
        return {field.name: getattr(value, field.name, None) for field in declared}
    if hasattr(type(value), "model_fields"):
        return dict(vars(value))
    return None


def items_of(value: object) -> list[object] | None:
    return list(value) if isinstance(value, list | tuple | set | frozenset) else None


def text_of(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


DEEPEST = 20
SURE = Speaks.SURELY


class _Finds(NamedTuple):
    """The patterns that find the known values, and the number of these values."""

    num_known: int
    exact: re.Pattern[str] | None
    bare: spelled.Spelled | None


class Redactor:
    """Hides known secrets wherever they appear.

    It knows values in the environment and on the command line whose names mean secrets, values that
    ``plain`` has found under such a name, and those that ``learn`` got.

    Args:
        secrets: further secret values.
    """

    def __init__(self, secrets: Iterable[str | None] = ()) -> None:
        self._known: set[str] = set()
        self._finds = _Finds(0, None, None)
        self._seen: dict[str, str] = {}
        self.learn(secrets)
        self._learn_phrases(sys.orig_argv[1:])

    def learn(self, secrets: Iterable[str | None], sure: bool = True) -> None:
        """Hide these values from now on, if they are long and rare enough.

        Unless ``sure``, hide only those that look like secrets.
        """
        self._known |= {secret for secret in secrets if secret and worth_hiding(secret, sure)}

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        return texts.without_assigned(self.values(text))

    def code(self, text: str) -> str:
        """Return lines of code without secrets; ``login(key=key)`` is not changed."""
        return texts.without_literals(self.values(text))

    def values(self, text: str) -> str:
        """Return a text without known values, and without values that look like secrets.

        The names beside values do not count here.
        """
        self._look_around()
        finds = self._found()
        text = finds.exact.sub(HIDDEN, text) if finds.exact is not None else text
        text = spelled.hide(text, finds.bare, HIDDEN)
        return texts.without_given_away(text)

    def command_line(self, arguments: Sequence[str]) -> list[str]:
        """Return a command line without the values that follow a flag such as ``--api-key``."""
        return [
            self._word(word, flag) for word, flag in zip(arguments, ["", *arguments], strict=False)
        ]

    def plain(self, value: object) -> Any:
        """Return a value without secrets, in the types of JSON.

        These are dicts, lists, strings, numbers, booleans and None. Any other object, NaN and
        infinities become text. A value that is hidden by its name is hidden in all places.
        """
        self.learn(secrets_in(value))
        return self._built(value, ())

    # Inside --------------------------------------------------------------------------------------

    def _found(self) -> _Finds:
        """Return the patterns for the known values, which change only with these values."""
        finds = self._finds
        if finds.num_known != len(self._known):
            known = self._known.copy()  # another thread may add secrets
            finds = self._finds = _Finds(len(known), pattern(known), spelled.pattern(known))
        return finds

    def _word(self, word: str, flag: str) -> str:
        name, value = texts.named(word, flag)
        if not texts.is_hidden(name, value, False):
            return self.text(word)
        return f"{name}={HIDDEN}" if value != word else HIDDEN

    def _built(self, value: object, around: tuple[int, ...], name: str = "") -> object:
        if value is None or isinstance(value, bool):
            return value
        if hides(name, value):
            self._learn_all(value, speaks(name) is SURE, around)
            return HIDDEN
        number = as_number(value)
        if number is not None:
            return number
        if isinstance(value, str):
            self._learn_phrases([value])
            return self.text(value)
        if id(value) in around or len(around) >= DEEPEST:
            return "..."
        return self._nested(value, (*around, id(value)), name)

    def _nested(self, value: object, around: tuple[int, ...], name: str) -> object:
        fields = fields_of(value)
        if fields is not None:
            names = {key: str(key) for key in fields}
            if isinstance(fields.get("name"), str) and "value" in fields:
                names["value"] = str(fields["name"])
            return {
                self.text(str(key)): self._built(item, around, names[key])
                for key, item in fields.items()
            }
        items = items_of(value)
        if items and len(items) == 2 and isinstance(items[0], str) and speaks(items[0]) is SURE:
            return [self.text(items[0]), self._built(items[1], around, items[0])]
        if items is None:
            self._learn_object(value, around)
            return self.text(text_of(value))
        arguments = [item for item in items if isinstance(item, str)]
        if arguments and len(arguments) == len(items) and not hides(name, "x"):
            self._learn_phrases(arguments)
            return self.command_line(arguments)
        return [self._built(item, around, name) for item in items]

    def _learn_object(self, value: object, around: tuple[int, ...]) -> None:
        """Learn the secrets in the attributes of an object, because its text may show them."""
        inside = getattr(value, "__dict__", None)
        if isinstance(inside, Mapping) and not isinstance(value, type) and not callable(value):
            for name, item in list(inside.items()):
                if isinstance(item, str | Mapping) and len(around) < DEEPEST:
                    self._built(item, around, str(name))

    def _learn_all(self, value: object, sure: bool, around: tuple[int, ...]) -> None:
        """Learn every text inside a hidden value."""
        if isinstance(value, str):
            self.learn([value], sure)
        elif isinstance(value, bytes):
            self.learn([value.decode(errors="replace")], sure)
        elif id(value) not in around and len(around) < DEEPEST:
            fields = fields_of(value)
            for item in items_of(value) or (fields.values() if fields is not None else ()):
                self._learn_all(item, sure, (*around, id(value)))

    def _learn_phrases(self, arguments: Sequence[str]) -> None:
        """Learn the secrets of words such as those of a command line.

        Known forms are ``--api-key=x``, ``--api-key x``, ``wandb.key=x``, ``https://user:x@host``,
        and texts that contain such an assignment.
        """
        for word, flag in zip(arguments, ["", *arguments], strict=False):
            self.learn((value for _, value in texts.assigned(word)), sure=False)
            self.learn(texts.passwords(word))
            name, value = texts.named(word, flag)
            self.learn([value] if texts.is_hidden(name, value, False) else [], speaks(name) is SURE)

    def _look_around(self) -> None:
        """Learn new secrets of the environment, because the loop may have changed it."""
        for name in list(os.environ):
            value = os.environ.get(name)  # another thread may have deleted it
            if value is not None and self._seen.get(name) != value:
                self._seen[name] = value
                self.learn(texts.passwords(value))
                self.learn([value] if hides(name, value) else [])


class _Learner(Redactor):
    """Collects the secrets in a value, and hides nothing, because its result is not shown."""

    def __init__(self, value: object) -> None:
        self._known = set()
        self._built(value, ())

    def text(self, text: str) -> str:
        return text


def secrets_in(value: object) -> set[str]:
    """Return the values that ``plain`` hides by their names."""
    return _Learner(value)._known
