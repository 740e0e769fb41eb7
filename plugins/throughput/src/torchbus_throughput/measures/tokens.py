"""How many tokens are in a batch: only where the user has said how to count them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor
from torchbus.plugin import UsageError

Tokens: TypeAlias = str | int | Callable[[Any], int]
"""A key, an attribute or an index of the batch, or a function from the batch to an int."""

NAMES_AT_MOST = 12


def count(batch: object, tokens: Tokens) -> int:
    """Return the number of tokens in a batch.

    A tensor has as many tokens as elements, padding included. Raises UsageError, which says what
    the batch has.
    """
    if not isinstance(tokens, str | int):
        return _of_function(batch, tokens)
    found = _part(batch, tokens)
    if isinstance(found, Tensor):
        return found.numel()
    if isinstance(found, int) and found >= 0:
        return found
    raise UsageError(
        f"the batch has a {type(found).__name__} as {tokens!r}, which tokens= names: a tensor or a"
        " count is needed. Pass a function from the batch to an int"
    )


def _of_function(batch: object, function: Callable[[Any], int]) -> int:
    name = getattr(function, "__name__", type(function).__name__)
    try:
        found = function(batch)
    except Exception as error:
        raise UsageError(
            f"tokens={name}: it raised {error!r} for a batch that is {described(batch)}"
        ) from error
    if not isinstance(found, int) or isinstance(found, bool):
        raise UsageError(
            f"tokens={name}: it returned a {type(found).__name__}, and must return an int that the"
            " host knows, such as batch['input_ids'].numel()"
        )
    if found < 0:
        raise UsageError(f"tokens={name}: it returned {found}, and a count must be 0 or more")
    return found


def _part(batch: Any, where: str | int) -> object:
    if isinstance(batch, Mapping) and where in batch:
        return batch[where]
    if isinstance(where, str) and hasattr(batch, where):
        return getattr(batch, where)
    if isinstance(where, int) and isinstance(batch, Sequence) and -len(batch) <= where < len(batch):
        return batch[where]
    raise UsageError(
        f"the batch has no {where!r}, which tokens= names as a key, an attribute or an index: it is"
        f" {described(batch)}"
    )


def described(batch: object) -> str:
    """Return what a batch consists of, in words."""
    kind = type(batch).__name__
    if isinstance(batch, Mapping):
        return f"a {kind} with the keys {_listed(map(repr, batch))}"
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return f"a {kind} of {len(batch)}: {_listed(type(part).__name__ for part in batch)}"
    names = [] if isinstance(batch, Tensor) else [*getattr(batch, "__dict__", ())]
    return f"a {kind}" + (f" with the attributes {_listed(names)}" if names else "")


def _listed(names: Any) -> str:
    found = list(names)
    more = [f"and {len(found) - NAMES_AT_MOST} more"] if len(found) > NAMES_AT_MOST else []
    return ", ".join([*found[:NAMES_AT_MOST], *more])
