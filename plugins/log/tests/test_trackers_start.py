"""How the run of a service is begun: with no network, late, or not at all."""

from __future__ import annotations

import threading

import pytest
from torchbus import session

from .tracker_client import Client, send, warned

TOKEN = "very-secret-token"


def test_a_start_that_fails_goes_on_offline(heard):
    client = Client(plan={"online": "fail"})
    with session(client, strategy=None) as s:
        send(s)
        assert "client: offline, its start failed" in s.explain()
    assert [call[0] for call in client.calls] == ["offline", "metrics", "close"] and client.offline
    assert warned(heard) == [
        "client did not start, it continues offline: ConnectionError: refused (hidden)"
    ]


def test_a_start_that_hangs_goes_on_offline_and_a_late_one_is_ended(heard):
    client = Client(plan={"online": "hang"}, start_timeout_s=0.2)
    with session(client, strategy=None) as s:
        client.let_go.set()
        while ("close", "run online", True) not in client.calls:
            pass
        assert client.experiment == "run offline"
        send(s)
    assert client.calls[-2:] == [
        ("metrics", {"loss": 0.5}, 0, None),
        ("close", "run offline", False),
    ]
    assert warned(heard) == ["client did not start, it continues offline: no answer within 0.2 s"]


def test_a_late_start_that_hands_out_the_current_run_does_not_end_it():
    class Single(Client):
        def open_run(self, session, config, offline):
            super().open_run(session, config, offline)
            return "the run"

    client = Single(plan={"online": "hang"}, start_timeout_s=0.2)
    with pytest.warns(UserWarning, match="continues offline"), session(client, strategy=None) as s:
        client.let_go.set()
        while (
            len([thread for thread in threading.enumerate() if thread.name == "torchbus-client"])
            > 1
        ):
            pass
        send(s)
    assert [call[0] for call in client.calls] == ["offline", "online", "metrics", "close"]


def test_a_start_without_a_network_is_tried_once(heard):
    client = Client(plan={"local": "", "online": "fail"})
    with session(client, strategy=None) as s:
        send(s)
    assert client.calls == [] and warned(heard) == [
        "client did not start, nothing is sent to it: ConnectionError: refused (hidden)"
    ]


def test_without_any_start_the_loop_runs_all_the_same(heard):
    client = Client(plan={"online": "fail", "offline": "fail"})
    with session(client, strategy=None) as s:
        send(s)
        client.experiment["a/b"].append(1).anything(3)
        client.experiment["c"] = 1
        assert not client.experiment and "client: not running" in s.explain()
    assert client.calls == [] and len(warned(heard)) == 2
