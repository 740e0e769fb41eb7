"""A service that turns calls away for the moment loses nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torchbus import session

from torchbus_log.trackers import retries

from .tracker_client import Client, send, warned


class TooMany(Exception):
    """As requests has it: the status is that of the response."""

    def __init__(self, status: int = 429, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"answered {status}")
        self.response = SimpleNamespace(status_code=status, headers=headers or {})


class Busy(Client):
    """Turns away every third call, or all calls from the ``first`` one on."""

    def __init__(self, error: Exception, always: bool = False) -> None:
        super().__init__()
        self.error, self.always, self.tried = error, always, 0

    def send_metrics(self, metrics: Any, step: Any, epoch: Any) -> None:
        self.tried += 1
        if self.always or self.tried % 3 == 0:
            raise self.error
        super().send_metrics(metrics, step, epoch)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses, which the tests do not wait for."""
    paused: list[float] = []
    monkeypatch.setattr("torchbus_log.trackers.tracker.time.sleep", paused.append)
    return paused


@pytest.mark.parametrize(
    "error",
    [
        TooMany(),
        TooMany(503),
        RuntimeError("Too Many Requests"),
        RuntimeError("RESOURCE_EXHAUSTED"),
    ],
    ids=str,
)
def test_each_third_call_is_turned_away_and_no_point_is_lost(error: Exception, heard: Any) -> None:
    client = Busy(error)
    with session(client, strategy=None) as s:
        send(s, 50)
    assert [call[2] for call in client.calls if call[0] == "metrics"] == list(range(50))
    assert client.tried == 74
    assert warned(heard) == []


def test_an_error_of_another_kind_is_not_tried_again(heard: Any) -> None:
    client = Busy(TooMany(400))
    with session(client, strategy=None) as s:
        send(s, 6)
    assert client.tried == 6
    (text,) = warned(heard)
    assert "2 of 6 calls failed (the first: TooMany: answered 400), 0 were not made" in text


def test_a_service_that_stays_away_is_soon_left_alone(heard: Any, no_pauses: list[float]) -> None:
    client = Busy(TooMany(), always=True)
    with session(client, strategy=None) as s:
        send(s, 3)
    assert client.tried == 6 + 1 + 1  # the later calls once each
    assert no_pauses == list(retries.PAUSES_S)
    assert "3 of 3 calls failed" in warned(heard)[0]


def test_what_counts_as_turned_away() -> None:
    caused = ValueError("of the client")
    caused.__cause__ = TooMany(502, {"Retry-After": "7"})
    own = RuntimeError("denied")
    own.code = 504  # type: ignore[attr-defined]
    for error in (caused, own, RuntimeError("rate limit exceeded")):
        assert retries.is_turned_away(error)
    for error in (ConnectionError("reset"), TooMany(404), RuntimeError("failed"), KeyError(429)):
        assert not retries.is_turned_away(error)
    assert retries.pause_s(caused, 0.5) == 7.0
    assert retries.pause_s(TooMany(429, {"Retry-After": "3600"}), 0.5) == retries.LONGEST_S
    assert retries.pause_s(TooMany(429, {"Retry-After": "Fri, 31 Dec"}), 0.5) == 0.5
    assert retries.pause_s(own, 0.5) == 0.5
