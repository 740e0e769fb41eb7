"""Reads numbers and hosts from environment variables, with one error for all invalid values."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping

from torchbus.errors import UsageError

NUMBERS, COUNTS, PORTS = range(2**31), range(1, 2**31), range(1, 2**16)
HOST = re.compile(r"[\w.:%-]{1,255}", re.ASCII)
INTERFACE = "GLOO_SOCKET_IFNAME"
LONGEST_SHOWN = 80


def integer(
    env: Mapping[str, str], name: str, default: int | None = None, among: range = NUMBERS
) -> int:
    """Return the number in a variable, or the default if the variable is not set.

    Raises UsageError, which names the variable, for anything that is not a number in ``among``.
    """
    text = env.get(name)
    if text is None and default is not None:
        return default
    digits = re.fullmatch(r"\s*([0-9]{1,10})\s*", text or "")
    if digits is not None and int(digits[1]) in among:
        return int(digits[1])
    raise wrong(name, text or "", f"a whole number from {among.start} to {among.stop - 1}")


def host(env: Mapping[str, str], name: str, default: str = "127.0.0.1") -> str:
    """Return the host in a variable, or the default; raises UsageError."""
    text = env.get(name, default)
    if HOST.fullmatch(text):
        return text
    raise wrong(name, text, "the name or address of a host")


def refuse_unknown_interface() -> None:
    """Raise UsageError if this host lacks an interface that the user has named for gloo.

    gloo itself would report it only after the ranks have started.
    """
    named, there = os.environ.get(INTERFACE, ""), [name for _, name in socket.if_nameindex()]
    if not set(filter(None, named.split(","))) <= set(there):
        raise wrong(INTERFACE, named, f"an interface of this host: {', '.join(there)}")


def wrong(name: str, text: str, wanted: str) -> UsageError:
    """Return the error for a variable whose value is not what is wanted."""
    shown = repr(text[:LONGEST_SHOWN]) + "..." * (len(text) > LONGEST_SHOWN)
    return UsageError(
        f"{name}={shown} is not {wanted}. Unset it if another launcher has left it, or correct it"
    )
