"""Variables that a library reads while a plugin starts it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment_variables(values: Mapping[str, object]) -> Iterator[None]:
    """Set these variables of the environment inside, and put them back as they were.

    What the loop does to other variables meanwhile stays.
    """
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: str(value) for name, value in values.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
