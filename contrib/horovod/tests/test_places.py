"""The environment variables with each rank's place, also for several hosts."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import pytest
from torchbus.world import World

from torchbus_horovod import strategy
from torchbus_launch.relaunch import environment_variables


class Stub:
    """One rank of a job, whose gather returns given answers of all ranks."""

    def __init__(self, world: World, answers: list[object]) -> None:
        self.world, self.rank, self.is_main = world, world.rank, world.is_main
        self.timeout = timedelta(minutes=2)
        self._answers = answers

    def all_gather_object(self, mine: object) -> list[object]:
        assert mine == self._answers[self.rank]
        return self._answers


def told(world: World, server: list[object], answers: list[object]) -> dict[str, str]:
    stub: Any = Stub(world, answers)
    words = strategy._variables(stub, server)
    return {name.removeprefix("HOROVOD_"): value for name, value in words.items()}


def test_hosts_with_different_numbers_of_ranks() -> None:
    """Two of three ranks are on the first host."""
    server: list[object] = ["10.0.0.1", 4321]
    answers = [(server, 0, 0), ([], 0, 1), ([], 1, 0)]
    places = [(0, 0, 0, 2), (1, 1, 0, 2), (2, 0, 1, 1)]
    found = [
        told(
            World(rank, 3, local, size, node),
            server if rank == 0 else [],
            answers,
        )
        for rank, local, node, size in places
    ]
    keys = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
    assert [[one[key] for key in keys] for one in found] == [
        ["0", "3", "0", "2", "0", "2", "node0"],
        ["1", "3", "1", "2", "0", "1", "node0"],
        ["2", "3", "0", "1", "1", "2", "node1"],
    ]
    for one in found:
        assert one["GLOO_RENDEZVOUS_ADDR"] == "10.0.0.1" and one["GLOO_RENDEZVOUS_PORT"] == "4321"
        assert one["GLOO_TIMEOUT_SECONDS"] == "30"


def test_the_interface_is_that_of_torchs_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    words = told(World(0, 1, 0, 1, 0), ["h", 1], [(["h", 1], 0, 0)])
    assert words["GLOO_IFACE"] == "eth7"


def test_rank_0_listens_where_the_others_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one_host: Any = Stub(World(one_host=True), [])
    several: Any = Stub(World(), [])
    assert strategy._seen_address(one_host) == strategy._local_address(one_host) == "127.0.0.1"
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.2")
    assert strategy._seen_address(several) == strategy._local_address(several) == "127.0.0.2"
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")  # not of this host: behind a translated address
    assert strategy._local_address(several) == ""
    monkeypatch.delenv("MASTER_ADDR")
    assert strategy._seen_address(several) == socket.gethostname()


def test_the_users_timeout_wins_and_a_launchers_place_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOROVOD_GLOO_TIMEOUT_SECONDS", "7")
    monkeypatch.setenv("HOROVOD_RANK", "5")
    before = dict(os.environ)
    words = told(World(0, 1, 0, 1, 0), ["h", 1], [(["h", 1], 0, 0)])
    assert words["GLOO_TIMEOUT_SECONDS"] == "7" and words["RANK"] == "0"
    with environment_variables({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}):
        assert os.environ["HOROVOD_RANK"] == "0" and os.environ["HOROVOD_SIZE"] == "1"
    assert dict(os.environ) == before
