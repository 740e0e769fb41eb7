"""Retries calls that a service rejects temporarily."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http import HTTPStatus

TURNED_AWAY = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
NAMES = ("status_code", "status", "code", "http_status")
"""The attributes in which clients store the HTTP status, on the error or on its ``response``."""
WORDS = re.compile(r"too many requests|rate.?limit|service unavailable|resource.exhausted", re.I)
PAUSES_S = (0.1, 0.3, 1.0, 3.0, 9.0)
LONGEST_S = 30.0


def is_turned_away(error: BaseException) -> bool:
    """Whether the service has rejected a call, and may accept it later.

    This is False for a broken connection, as the call may have arrived.
    """
    return any(
        statuses & TURNED_AWAY if (statuses := set(_statuses(one))) else WORDS.search(str(one))
        for one in _causes(error)
    )


def pause_s(error: BaseException, before_s: float) -> float:
    """Return how many seconds to wait: the service's Retry-After, or ``before_s``."""
    for one in _causes(error):
        headers = getattr(getattr(one, "response", None), "headers", None) or {}
        try:
            return min(max(float(headers["Retry-After"]), 0.0), LONGEST_S)
        except (KeyError, TypeError, ValueError):
            continue
    return before_s


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and the errors that led to it, as clients wrap the errors of a library."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _statuses(error: BaseException) -> Iterator[int]:
    for place in (error, getattr(error, "response", None)):
        for name in NAMES:
            value = getattr(place, name, None)
            if isinstance(value, int):
                yield value
