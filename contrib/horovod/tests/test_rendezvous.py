"""Other programs that connect to Horovod's server, for which a small server stands in."""

from __future__ import annotations

import http.client
import http.server
import socket
import socketserver
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

from torchbus_horovod import _compat


class RendezvousHandler(http.server.SimpleHTTPRequestHandler):
    """Answers HEAD with names of files, and reads values of any length, as Horovod's handler."""

    def do_PUT(self) -> None:
        self.server.value = self.rfile.read(int(self.headers["Content-Length"]))  # type: ignore[attr-defined]
        self.send_status_code(200)

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.value)  # type: ignore[attr-defined]

    def send_status_code(self, code: int) -> None:
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class RendezvousHTTPServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    def __init__(self, address: tuple[str, int], handler: type, verbose: int) -> None:
        super().__init__(address, handler)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("horovod.runner.http.http_server")
    vars(module).update(
        RendezvousHandler=RendezvousHandler, RendezvousHTTPServer=RendezvousHTTPServer
    )
    package = ModuleType("horovod.runner.http")
    vars(package).update(http_server=module)
    for name in ("horovod", "horovod.runner"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def answer(
    port: int, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body, headers)
    found = connection.getresponse()
    return found.status, found.read()


def test_what_a_stranger_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "private.txt").touch()
    monkeypatch.chdir(tmp_path)
    with _compat.rendezvous("127.0.0.1") as port:
        assert answer(port, "HEAD", "/private.txt")[0] == 405
        for length in ("999999999999", "-1", "many", "9" * 5000, "0" * 10 + "9" * 8):
            assert answer(port, "PUT", "/global/0", **{"Content-Length": length})[0] == 413
        assert answer(port, "PUT", "/global/0", b"an address")[0] == 200
        assert answer(port, "GET", "/global/0") == (200, b"an address")
    assert capsys.readouterr().err == ""


def test_a_connection_that_sends_nothing_does_not_delay_the_start() -> None:
    with _compat.rendezvous("127.0.0.1") as port:
        stranger = socket.create_connection(("127.0.0.1", port))
        stranger.sendall(b"PUT /global/0 HTTP/1.1\r\n")
        while not any("process_request_thread" in one.name for one in threading.enumerate()):
            time.sleep(0.01)
    stranger.close()
