"""Trackers: whatever a client does, the loop goes on."""

from __future__ import annotations

import os
import threading
import time
import warnings

import pytest
from torchbus import session
from torchbus.errors import PluginError, UsageError
from torchbus.trackers import Tracker, without_secrets

TOKEN = "very-secret-token"


class Client(Tracker):
    """A tracker whose client is told what to do by ``plan``: "hang", "fail", or nothing, for each kind of call."""

    name = "client"

    def __init__(self, *, plan: dict[str, str] | None = None, **policy) -> None:
        super().__init__(**policy)
        self.plan = plan or {}
        self.calls: list[tuple] = []
        self.threads: set[str] = set()
        self.let_go = threading.Event()

    def needs_network(self):
        return "local" not in self.plan

    def _act(self, kind: str, *what: object) -> None:
        self.threads.add(threading.current_thread().name)
        if self.plan.get(kind) == "hang":
            self.let_go.wait()
        if self.plan.get(kind) == "fail":
            raise ConnectionError(f"refused {TOKEN}")
        self.calls.append((kind, *what))

    def open_run(self, session, config, offline):
        assert config["world_size"] == 1
        self._act("offline" if offline else "online")
        return f"run {'offline' if offline else 'online'}"

    def send_metrics(self, metrics, step, epoch):
        self._act("metrics", metrics, step, epoch)

    def send_hyperparameters(self, values):
        self._act("values", values)

    def send_system(self, metrics, time_s):
        self._act("system", metrics, time_s)

    def close_run(self, run, failed):
        self._act("close", run, failed)

    def secrets(self):
        return [TOKEN]


def send(s, count=1):
    for step in range(count):
        s._context.bus.hook.metrics_ready(metrics={"loss": 0.5}, step=step, epoch=None, prog_bar=frozenset())


def warned(record) -> list[str]:
    return [str(warning.message) for warning in record]


@pytest.fixture
def heard():
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        yield record


def test_calls_come_in_order_on_a_thread_of_their_own():
    client = Client()
    with session(client, strategy=None) as s:
        send(s, 2)
        s._context.bus.hook.hyperparameters(values={"a": object, "api_key": TOKEN})
        s._context.bus.hook.system_metrics(metrics={"gpu": 1.0}, time_s=2.5)
        assert client.experiment == "run online"
        assert "client: running" in s.explain() and TOKEN not in s.explain()
    assert client.calls == [
        ("online",), ("metrics", {"loss": 0.5}, 0, None), ("metrics", {"loss": 0.5}, 1, None),
        ("values", {"a": "<class 'object'>", "api_key": "(hidden)"}), ("system", {"gpu": 1.0}, 2.5), ("close", "run online", False),
    ]  # fmt: skip
    assert client.threads == {"torchbus-client"}
    assert not [thread for thread in threading.enumerate() if thread.name == "torchbus-client"]


def test_an_error_in_the_block_is_told_to_the_run():
    client = Client()
    with pytest.raises(ValueError), session(client, strategy=None):
        raise ValueError("boom")
    assert client.calls[-1] == ("close", "run online", True)


def test_a_start_that_fails_goes_on_offline(heard):
    client = Client(plan={"online": "fail"})
    with session(client, strategy=None) as s:
        send(s)
        assert "client: offline, its start failed" in s.explain()
    assert [call[0] for call in client.calls] == ["offline", "metrics", "close"] and client.offline
    assert warned(heard) == ["client did not start, it goes on offline: ConnectionError: refused (hidden)"]


def test_a_start_that_hangs_goes_on_offline_and_a_late_one_is_ended(heard):
    client = Client(plan={"online": "hang"}, start_timeout_s=0.2)
    with session(client, strategy=None) as s:
        client.let_go.set()
        while ("close", "run online", True) not in client.calls:
            pass
        assert client.experiment == "run offline"
        send(s)
    assert client.calls[-2:] == [("metrics", {"loss": 0.5}, 0, None), ("close", "run offline", False)]
    assert warned(heard) == ["client did not start, it goes on offline: no answer within 0.2 s"]


def test_a_late_start_that_hands_out_the_current_run_does_not_end_it():
    class Single(Client):
        def open_run(self, session, config, offline):
            super().open_run(session, config, offline)
            return "the run"

    client = Single(plan={"online": "hang"}, start_timeout_s=0.2)
    with pytest.warns(UserWarning, match="goes on offline"), session(client, strategy=None) as s:
        client.let_go.set()
        while len([thread for thread in threading.enumerate() if thread.name == "torchbus-client"]) > 1:
            pass
        send(s)
    assert [call[0] for call in client.calls] == ["offline", "online", "metrics", "close"]


def test_a_start_without_a_network_is_tried_once(heard):
    client = Client(plan={"local": "", "online": "fail"})
    with session(client, strategy=None) as s:
        send(s)
    assert client.calls == [] and warned(heard) == ["client did not start, nothing is sent to it: ConnectionError: refused (hidden)"]


def test_without_any_start_the_loop_runs_all_the_same(heard):
    client = Client(plan={"online": "fail", "offline": "fail"})
    with session(client, strategy=None) as s:
        send(s)
        client.experiment["a/b"].append(1).anything(3)
        client.experiment["c"] = 1
        assert not client.experiment and "client: not running" in s.explain()
    assert client.calls == [] and len(warned(heard)) == 2


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
    assert warned(heard) == ["client did not finish: it had not finished after 0.3 s, and was left behind (0 of 100 calls done)"]


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
    with pytest.raises(PluginError, match=r"^client did not start: ConnectionError: refused \(hidden\)$"):
        session(Client(plan={"online": "fail"}, on_error="raise"), strategy=None).__enter__()
    client = Client(plan={"metrics": "fail"}, on_error="raise")
    with pytest.warns(UserWarning, match="calls failed"), pytest.raises(PluginError, match=r"client: ConnectionError"):  # noqa: SIM117
        with session(client, strategy=None) as s:
            for _ in range(1000):
                send(s)
                time.sleep(0.01)


@pytest.mark.parametrize("plan", [{"close": "fail"}, {"metrics": "fail"}])
def test_on_error_raise_at_the_end(plan):
    """What the last calls do comes to light when the session ends."""
    with pytest.raises(PluginError, match=r"ConnectionError: refused \(hidden\)"), session(Client(plan=plan, on_error="raise"), strategy=None) as s:
        send(s)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"ranks": "some"}, "ranks='some' is unknown: use 'main' or 'all'"),
        ({"on_error": "ignore"}, "on_error='ignore' is unknown: use 'warn' or 'raise'"),
        ({"start_timeout_s": "long"}, "start_timeout_s='long' is a str: it must be a number of seconds"),
    ],
)
def test_options_are_checked(policy, words):
    with pytest.raises(UsageError) as error:
        Client(**policy)
    assert str(error.value) == words


def test_secrets_are_taken_out_of_texts():
    assert without_secrets("a hush-77 c", ["hush-77", None, "", "a"]) == "a (hidden) c"
