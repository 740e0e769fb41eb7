"""Where the ranks' store listens."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import pytest
import torch.distributed as dist

from torchbus_launch import listening

TIMEOUT = timedelta(seconds=5)
ANOTHER = "127.0.0.2"  # on Linux each of 127.0.0.0/8 is an address of this host


def answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 2).close()
    except OSError:
        return False
    return True


def own_address() -> str | None:
    """One of this host that is no loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return None
        return str(probe.getsockname()[0])


def test_one_host_listens_on_loopback_only() -> None:
    store = listening.serve("127.0.0.1", 0, True, TIMEOUT)
    assert answers("127.0.0.1", store.port) and not answers(ANOTHER, store.port)
    own = own_address()
    assert own is None or not answers(own, store.port)
    dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=TIMEOUT).set("name", "text")
    assert store.get("name") == b"text"


def test_several_hosts_use_the_address_of_the_first() -> None:
    store = listening.serve(ANOTHER, 0, False, TIMEOUT)
    assert answers(ANOTHER, store.port) and not answers("127.0.0.1", store.port)


@pytest.mark.parametrize("address", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_is_not_this_hosts_is_torchs_affair(address: str) -> None:
    """A forwarded one, or a name that only others know: it listens everywhere."""
    assert listening._listener(listening._local_address(address), 0) is None


def test_a_name_that_means_loopback_here_means_another_address_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Debian's /etc/hosts says so of the host's own name."""
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))],
    )
    assert (
        listening._local_address("myhost") is None
        and listening._local_address("127.0.1.1") == "127.0.1.1"
        and listening._local_address("localhost") == "127.0.0.1"
    )


def test_of_several_addresses_none_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them another host takes can't be told from here."""
    answers = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, 0))
        for number in ("192.0.2.1", "fd00::1")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    assert listening._local_address("myhost") is None


def test_gloo_is_told_for_the_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(listening.INTERFACE, raising=False)
    with listening.gloo_on_loopback(True):
        assert os.environ[listening.INTERFACE] in ("lo", "lo0")
    assert listening.INTERFACE not in os.environ
    with listening.gloo_on_loopback(False):
        assert listening.INTERFACE not in os.environ
    monkeypatch.setenv(listening.INTERFACE, "eth7")
    with listening.gloo_on_loopback(True):
        assert os.environ[listening.INTERFACE] == "eth7"
    assert os.environ[listening.INTERFACE] == "eth7"
