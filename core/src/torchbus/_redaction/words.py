"""Decides by the words of a name whether it means a secret.

Whole words count, so that neither "monkey" nor "author" is hidden.
"""

from __future__ import annotations

import functools
import os
import re
from enum import Enum
from numbers import Integral, Real

HIDDEN = "(hidden)"
BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # wandbKey, APIKey
BETWEEN = re.compile(r"[\W_]+|(?<=[^\W\d_])\d+(?=[\W_]|$)")

STEMS = re.compile(
    "passw|passphrase|passcode|secret|credential|webhook|(?:api|access|auth|private)_?(?:key|token)s?"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALWAYS = _words("pwd creds bearer authorization jwt cookie cookies otp sas")
OFTEN = _words("key token auth oauth pat pass pw")
"""Words with other meanings, too: they hide a text or a long number, unless the name is one of a
model or table.
"""
MANY = _words("keys tokens")
"""Hidden if the name also says whose or what for."""
HOLDERS = (
    "api access auth private secret ssh gpg wandb hf huggingface hub neptune comet mlflow clearml"
    " aws azure gcp google github gh gitlab openai anthropic slack discord telegram bot kaggle"
    " modal s3 minio db client login user account storage service license refresh session sign"
    " signing signature encryption deploy subscription bearer oauth jwt personal admin root"
    " registry pypi npm docker"
)
HOLDING = _words(HOLDERS)
GLUED = re.compile(rf"(?:{HOLDERS.replace(' ', '|')})(?:key|token|pass|pwd)s?")
PLAIN = _words(
    "pad eos bos unk sep cls mask padding embedding embed query qkv value values head heads dropout"
    " prefix special stop start end begin separator sort order index primary foreign group column"
    " image label text target metric monitor input output batch dict state map cache word next"
    " forward backward single first second kernel"
)
COUNTS = _words(
    "num n nb max min per count counts size dim dims len length limit rate ratio steps id ids"
    " seconds timeout bits rounds"
)
PLACES = _words(
    "file files filename path paths dir folder sock socket mode method type types provider name"
    " field env parallelism prompt"
)
SENTENCE = _words(
    "the a an it its this that these there they must may can is are was were no not none and or but"
    " if of to in on at for from by with without use set give pass choose see each every all any"
    " only one either neither both what which who whoever you your run call make let"
)
"""Words with which a sentence goes on after a colon, as in "the file is not secret: it must be"."""
PROBLEMS = _words("error exception warning")
"""``KeyError: 'momentum'``."""


class Speaks(Enum):
    """How surely a name means a secret."""

    NOT = 0
    PERHAPS = 1
    SURELY = 2


def is_place(value: str) -> bool:
    """Return whether a value is an existing path: ``PWD``, ``ssl_key="/etc/ssl/key.pem"``."""
    return value.startswith(("/", "./", "../", "~")) and os.path.exists(os.path.expanduser(value))


@functools.lru_cache(4096)
def speaks(name: str) -> Speaks:
    """Return how surely a value of this name is a secret."""
    words = [word for word in BETWEEN.split(BOUNDARY.sub("_", name[-200:]).lower()) if word]
    if not words or words[-1] in PLACES | PROBLEMS:
        return Speaks.NOT
    if any(
        word in ALWAYS or STEMS.search(word) or GLUED.fullmatch(word) for word in words
    ) or STEMS.search("_".join(words)):
        return Speaks.SURELY
    there = set(words)
    if there & HOLDING and there & (OFTEN | MANY) - HOLDING:
        return Speaks.SURELY
    return Speaks.PERHAPS if there & OFTEN and not there & PLAIN else Speaks.NOT


def hides(name: str, value: object) -> bool:
    """Return whether to hide a whole value of this name.

    A number stays if the name is a count (``max_key_length``).
    """
    sure = speaks(name)
    if sure is Speaks.NOT or value is None or isinstance(value, bool) or value == "":
        return False
    if isinstance(value, str) and is_place(value):
        return False
    if isinstance(value, Real):
        long = isinstance(value, Integral) and abs(int(value)) >= 10**6
        return (sure is Speaks.SURELY or long) and not COUNTS & set(
            BETWEEN.split(BOUNDARY.sub("_", name).lower())
        )
    return sure is Speaks.SURELY or not isinstance(value, dict | list | tuple | set | frozenset)
