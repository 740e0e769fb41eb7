"""The thread that looks after a rank does not end by an error of its own and leave the rank
waiting.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from torchbus.errors import RankFailed

from torchbus_launch.broadcast_log import connected_to
from torchbus_launch.guard import Guard


def test_an_error_of_the_guard_ends_the_rank() -> None:
    def look() -> None:
        raise ConnectionResetError("the store has gone")

    guard = Guard(1, look, lambda number: None)
    # as the main thread does, once nothing waits for it any more
    guard.on_release(lambda: setattr(guard, "leaving", True))
    guard._thread.start()
    guard._thread.join(10.0)
    assert not guard._thread.is_alive() and guard.leaving
    with pytest.raises(
        RankFailed,
        match=r"the guard of rank 1 failed: ConnectionResetError\('the store has gone'\)",
    ):
        raise guard.reason or AssertionError


def test_sockets_of_the_host_process_are_no_connections(tmp_path: Path) -> None:
    """A worker of Ray has Unix sockets, whose peer is a path."""
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))
        assert connected_to(9) == set()
    with socket.create_server(("127.0.0.1", 0)) as tcp:
        port = tcp.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as ours:
            assert connected_to(port) == {ours.fileno()}
