"""Trackers: whatever a client does, the loop goes on."""

from __future__ import annotations

import os
import threading
import time

import pytest
from torchbus import session
from torchbus.errors import PluginError, UsageError

from torchbus_log.trackers.values import without_secrets

from .tracker_client import Client, send, warned

TOKEN = "very-secret-token"


def test_calls_come_in_order_on_a_thread_of_their_own():
    client = Client()
    with session(client, strategy=None) as s:
        send(s, 2)
        s._context.bus.hook.hyperparameters(values={"a": object, "api_key": TOKEN})
        s._context.bus.hook.system_metrics(metrics={"gpu": 1.0}, time_s=2.5)
        assert client.experiment == "run online"
        assert "client: running" in s.explain() and TOKEN not in s.explain()
    assert client.calls == [
        ("online",),
        ("metrics", {"loss": 0.5}, 0, None),
        ("metrics", {"loss": 0.5}, 1, None),
        ("values", {"a": "<class 'object'>", "api_key": "(hidden)"}),
        ("system", {"gpu": 1.0}, 2.5),
        ("close", "run online", False),
    ]
    assert client.threads == {"torchbus-client"}
    assert not [thread for thread in threading.enumerate() if thread.name == "torchbus-client"]


def test_an_error_in_the_block_is_told_to_the_run():
    client = Client()
    with pytest.raises(ValueError), session(client, strategy=None):
        raise ValueError("boom")
    assert client.calls[-1] == ("close", "run online", True)


def test_failing_calls_are_counted_and_given_up(heard):
    client = Client(plan={"metrics": "fail"})
    with session(client, strategy=None) as s:
        for _ in range(20):
            send(s)
            s._context.bus.hook.explain_lines(session=s)
            threading.Event().wait(0.02)
    (text,) = warned(heard)
    failed, calls, dropped = (int(word) for word in text.split() if word.isdigit())
    assert text.startswith("client: ") and "(the first: ConnectionError: refused (hidden))" in text
    assert 5 <= failed == calls < 20 and dropped == 20 - calls


def test_a_call_that_hangs_holds_nothing_up(heard):
    client = Client(plan={"metrics": "hang"}, finish_timeout_s=0.3)
    with session(client, strategy=None) as s:
        send(s, 100)
    client.let_go.set()
    assert warned(heard) == [
        "client did not finish: it had not finished after 0.3 s, and was left behind (0 of 100 calls done)"
    ]


def test_a_forked_child_reports_nothing():
    client = Client()
    with session(client, strategy=None) as s:
        pid = os.fork()
        if pid == 0:
            send(s)
            s.close()  # does nothing to the parent's run
            os._exit(len(client.calls) - 1)
        assert os.waitpid(pid, 0)[1] == 0
    assert [call[0] for call in client.calls] == ["online", "close"]


def test_on_error_raise():
    with pytest.raises(
        PluginError, match=r"^client did not start: ConnectionError: refused \(hidden\)$"
    ):
        session(Client(plan={"online": "fail"}, on_error="raise"), strategy=None).__enter__()
    client = Client(plan={"metrics": "fail"}, on_error="raise")
    with (  # noqa: SIM117
        pytest.warns(UserWarning, match="calls failed"),
        pytest.raises(PluginError, match=r"client: ConnectionError"),
    ):
        with session(client, strategy=None) as s:
            for _ in range(1000):
                send(s)
                time.sleep(0.01)


@pytest.mark.parametrize("plan", [{"close": "fail"}, {"metrics": "fail"}])
def test_on_error_raise_at_the_end(plan):
    """What the last calls do comes to light when the session ends."""
    with (
        pytest.raises(PluginError, match=r"ConnectionError: refused \(hidden\)"),
        session(Client(plan=plan, on_error="raise"), strategy=None) as s,
    ):
        send(s)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"ranks": "some"}, "ranks='some' is unknown: use 'main' or 'all'"),
        ({"on_error": "ignore"}, "on_error='ignore' is unknown: use 'warn' or 'raise'"),
        (
            {"start_timeout_s": "long"},
            "start_timeout_s='long' is a str: it must be a number of seconds",
        ),
    ],
)
def test_options_are_checked(policy, words):
    with pytest.raises(UsageError) as error:
        Client(**policy)
    assert str(error.value) == words


def test_secrets_are_taken_out_of_texts():
    assert without_secrets("a hush-77 c", ["hush-77", None, "", "a"]) == "a (hidden) c"
