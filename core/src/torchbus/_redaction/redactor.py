"""Removes secrets from values and texts, and remembers those that it has seen."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchbus._redaction import known, texts
from torchbus._redaction.known import worth_hiding
from torchbus._redaction.shapes import as_number, cleaned, fields_of, items_of, text_of
from torchbus._redaction.words import HIDDEN, Speaks, hides, speaks

DEEPEST = 20
SURE = Speaks.SURELY


class Redactor:
    """Hides known secrets wherever they appear.

    It knows the values in the environment and on the command line whose names mean secrets. It also
    knows those that ``plain`` has met under such a name.

    Args:
        secrets: further values that are secret.
    """

    def __init__(self, secrets: Iterable[str | None] = ()) -> None:
        self._known: set[str] = set()
        self._finds = known.pattern(())
        self._seen: dict[str, str] = {}
        self.learn(secrets)
        self._learn_words(sys.orig_argv[1:])

    def learn(self, secrets: Iterable[str | None], sure: bool = True) -> None:
        """Hide these values from now on."""
        new = {secret for secret in secrets if secret and worth_hiding(secret, sure)} - self._known
        if new:
            self._known |= new
            self._finds = known.pattern(self._known)

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        return texts.without_assigned(self.values(text))

    def code(self, text: str) -> str:
        """Return lines of code without secrets; ``login(key=key)`` stays."""
        return texts.without_literals(self.values(text))

    def values(self, text: str) -> str:
        """Return a text without known values, passwords in addresses, and the like.

        Names do not count here.
        """
        self._look_around()
        text = self._finds.sub(HIDDEN, text) if self._finds is not None else text
        return texts.without_given_away(text)

    def words(self, words: Sequence[str]) -> list[str]:
        """Return a command line; hide what follows a flag such as ``--api-key``."""
        return [self._word(word, flag) for word, flag in zip(words, ["", *words], strict=False)]

    def plain(self, value: object) -> Any:
        """Return a value in the types of JSON, without secrets.

        These are dicts, lists, strings, numbers, booleans and None. Anything else becomes its text,
        also NaN and infinities. A value that is hidden by its name in one place is hidden in all.
        """
        self._built(value, ())
        return self._built(value, ())

    # Inside --------------------------------------------------------------------------------------

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
            self._learn_words([value])
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
                self.text(cleaned(key)): self._built(item, around, names[key])
                for key, item in fields.items()
            }
        items = items_of(value)
        if items and len(items) == 2 and isinstance(items[0], str) and speaks(items[0]) is SURE:
            return [self.text(items[0]), self._built(items[1], around, items[0])]
        if items is None:
            self._learn_object(value, around)
            return self.text(text_of(value))
        words = [item for item in items if isinstance(item, str)]
        if words and len(words) == len(items) and not hides(name, "x"):
            self._learn_words(words)
            return self.words(words)
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

    def _learn_words(self, words: Sequence[str]) -> None:
        """Learn the secrets of words such as those of a command line.

        It knows ``--api-key=x``, ``--api-key x``, ``wandb.key=x``, ``https://user:x@host``, and
        texts.
        """
        for word, flag in zip(words, ["", *words], strict=False):
            self.learn((value for _, value in texts.assigned(word)), sure=False)
            self.learn(texts.passwords(word))
            name, value = texts.named(word, flag)
            self.learn([value] if texts.is_hidden(name, value, False) else [], speaks(name) is SURE)

    def _look_around(self) -> None:
        """Learn the secrets of the environment again, because the loop may have changed it."""
        for name, value in os.environ.items():
            if self._seen.get(name) != value:
                self._seen[name] = value
                self.learn(texts.passwords(value))
                self.learn([value] if hides(name, value) else [])
