"""The session's own options, and checks of types."""

from __future__ import annotations

import numbers
from typing import Any

from torchbus.errors import UsageError

FORMS = ("auto", "script", "fork", "spawn")
CORE_OPTIONS = (
    "strategy",
    "devices",
    "accelerator",
    "num_nodes",
    "launch",
    "logger",
    "capture",
    "seed",
    "prefetch",
    "verbose",
    "print_all_ranks",
    "timeout_s",
    "hang_timeout",
    "freeze_timeout",
)


def plain(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options with Python's numbers in the place of NumPy's."""
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, numbers.Real) and not isinstance(value, int | float):
        return value.item() if hasattr(value, "item") else value
    return value


def expect(name: str, value: object, types: type | tuple[type, ...], words: str) -> None:
    """Raise UsageError unless an option has one of these types. A bool does not count as an int."""
    wanted = types if isinstance(types, tuple) else (types,)
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise UsageError(f"{name}={value!r} is a {type(value).__name__}: it must be {words}")


def check(given: dict[str, Any]) -> None:
    """Raise UsageError if an option of the session's own has a wrong type or value."""
    for name in ("capture", "verbose", "print_all_ranks"):
        expect(name, given[name], bool, "True or False")
    expect("num_nodes", given["num_nodes"], int, "a number of machines")
    for name in ("timeout_s", "hang_timeout", "freeze_timeout"):
        expect(name, given[name], (int, float), "a number of seconds")
        if not given[name] > 0:
            raise UsageError(f"{name}={given[name]}: it must be positive")
    expect("accelerator", given["accelerator"], str, "'auto', 'cpu', 'gpu' or a device type")
    expect("prefetch", given["prefetch"], int, "0 or 1")
    if given["prefetch"] not in (0, 1):
        raise UsageError(
            f"prefetch={given['prefetch']}: it must be 0 or 1, the number of batches that are moved"
            " to the device ahead"
        )
    expect("seed", given["seed"], (int, type(None)), "a whole number from 0 to 4294967295")
    if given["seed"] is not None and not 0 <= given["seed"] < 2**32:
        raise UsageError(
            f"seed={given['seed']}: it must be from 0 to 4294967295, as NumPy takes no other"
        )
    if given["num_nodes"] < 1:
        raise UsageError(f"num_nodes={given['num_nodes']}: there must be at least one")
    if given["launch"] not in FORMS:
        raise UsageError(
            f"launch={given['launch']!r} is unknown: use {' or '.join(map(repr, FORMS))}"
        )
