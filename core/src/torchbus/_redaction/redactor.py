"""Takes secrets out of values and texts, and remembers those that it has seen."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torchbus._redaction import known, texts
from torchbus._redaction.known import worth_hiding
from torchbus._redaction.shapes import as_number, cleaned, fields_of, items_of, text_of
from torchbus._redaction.words import HIDDEN, Speaks, hides, speaks

DEEPEST = 20
SURE = Speaks.SURELY


class Redactor:
    """Knows the values of the environment and of the command line whose names speak of secrets, and those that ``plain`` has met under such a
    name. They are hidden wherever they stand.

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
        """Values that are to be hidden from now on."""
        new = {secret for secret in secrets if secret and worth_hiding(secret, sure)} - self._known
        if new:
            self._known |= new
            self._finds = known.pattern(self._known)

    def text(self, text: str) -> str:
        """A text without secrets."""
        return texts.without_assigned(self.values(text))

    def values(self, text: str) -> str:
        """A text without the values that are known, passwords in addresses and the like; names say nothing here."""
        self._look_around()
        text = self._finds.sub(HIDDEN, text) if self._finds is not None else text
        return texts.without_given_away(text)

    def words(self, words: Sequence[str]) -> list[str]:
        """A command line; what follows a flag such as ``--api-key`` is hidden."""
        return [self._word(word, flag) for word, flag in zip(words, ["", *words], strict=False)]

    def plain(self, value: Any) -> Any:
        """A value as JSON has it, without secrets: dicts, lists, strings, numbers, booleans, None; anything else as its text, NaN and infinities
        too. What is hidden by its name in one place is hidden in all."""
        self._built(value, ())
        return self._built(value, ())

    # Inside ----------------------------------------------------------------------------------------------------

    def _word(self, word: str, flag: str) -> str:
        name, value = texts.named(word, flag)
        if not texts.is_hidden(name, value, False):
            return self.text(word)
        return f"{name}={HIDDEN}" if value != word else HIDDEN

    def _built(self, value: Any, around: tuple[int, ...], name: str = "") -> Any:
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

    def _nested(self, value: Any, around: tuple[int, ...], name: str) -> Any:
        fields = fields_of(value)
        if fields is not None:
            return {self.text(cleaned(key)): self._built(item, around, str(key)) for key, item in fields.items()}
        items = items_of(value)
        if items is None:
            self._learn_object(value, around)
            return self.text(text_of(value))
        if items and all(isinstance(item, str) for item in items) and not hides(name, "x"):
            self._learn_words(items)
            return self.words(items)
        return [self._built(item, around, name) for item in items]

    def _learn_object(self, value: Any, around: tuple[int, ...]) -> None:
        """The text of an object may show what its attributes hold."""
        inside = getattr(value, "__dict__", None)
        if isinstance(inside, Mapping) and not isinstance(value, type) and not isinstance(value, Callable):  # type: ignore[arg-type]
            for name, item in list(inside.items()):
                if isinstance(item, str | Mapping) and len(around) < DEEPEST:
                    self._built(item, around, str(name))

    def _learn_all(self, value: Any, sure: bool, around: tuple[int, ...]) -> None:
        """Every text inside of something that is hidden."""
        if isinstance(value, str):
            self.learn([value], sure)
        elif isinstance(value, bytes):
            self.learn([value.decode(errors="replace")], sure)
        elif id(value) not in around and len(around) < DEEPEST:
            fields = fields_of(value)
            for item in items_of(value) or (fields.values() if fields is not None else ()):
                self._learn_all(item, sure, (*around, id(value)))

    def _learn_words(self, words: Sequence[str]) -> None:
        """Of ``--api-key=x``, ``--api-key x``, ``wandb.key=x``, of texts, and of ``https://user:x@host``."""
        for word, flag in zip(words, ["", *words], strict=False):
            self.learn((value for _, value in texts.assigned(word)), sure=False)
            self.learn(texts.passwords(word))
            name, value = texts.named(word, flag)
            self.learn([value] if texts.is_hidden(name, value, False) else [], speaks(name) is SURE)

    def _look_around(self) -> None:
        """The environment, which the loop may have changed."""
        for name, value in os.environ.items():
            if self._seen.get(name) != value:
                self._seen[name] = value
                self.learn(texts.passwords(value))
                self.learn([value] if hides(name, value) else [])
