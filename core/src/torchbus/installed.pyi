"""What plugins of others add, for type checkers and editors: nothing, until ``torchbus stubs`` has
written a stub of this module.
"""

from __future__ import annotations

import typing

MoreStrategies = typing.NoReturn
MoreLoggers = typing.NoReturn

class MoreOptions(typing.TypedDict, total=False):
    """Options of ``session``."""

class MoreVerbs:
    """Verbs of ``s.``."""
