"""Checks whether processes of this machine can reach each other."""

from __future__ import annotations

import socket

from torchbus._cli.doctor.finding import Finding

TIMEOUT_S = 5.0
WORD = b"torchbus"


def look() -> list[Finding]:
    """Send a word over 127.0.0.1, as the ranks of one machine do."""
    try:
        works = _send() == WORD
        problem = "what is sent to 127.0.0.1 does not arrive"
    except OSError as error:
        works, problem = False, f"127.0.0.1 can't be reached ({error})"
    remedy = "bring the interface up (ip link set lo up), and let the firewall pass it"
    return [
        Finding(
            "loopback",
            {"TCP": "works" if works else "fails"},
            [] if works else [f"{problem}: {remedy}"],
        )
    ]


def _send() -> bytes:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), TIMEOUT_S) as client,
    ):
        server.settimeout(TIMEOUT_S)
        peer = server.accept()[0]
        with peer:
            peer.settimeout(TIMEOUT_S)
            client.sendall(WORD)
            return peer.recv(len(WORD))
