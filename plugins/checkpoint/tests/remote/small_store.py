"""An S3 store on this machine, and a way to it that can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading


class Way:
    """A port that leads to another one, while it is open."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []
        self.port = 0
        self.bytes_until_cut: int | None = None
        """Sent to the store, from now on."""
        self.begin()

    @property
    def is_open(self) -> bool:
        return self._listener is not None

    def begin(self) -> None:
        self.bytes_until_cut = None
        self._listener = listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen()
        self.port = listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """Connections are refused from now on, and those that are open end."""
        listener, self._listener = self._listener, None
        for one in [listener, *self._open]:
            if one is not None:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, there = (
                    listener.accept()[0],
                    socket.create_connection(("127.0.0.1", self._to)),
                )
                self._open += [here, there]
                for source, target in ((here, there), (there, here)):
                    threading.Thread(
                        target=self._copy, args=(source, target, source is here), daemon=True
                    ).start()

    def _copy(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if is_request and self.bytes_until_cut is not None:
                    self.bytes_until_cut -= len(data)
                    if self.bytes_until_cut < 0:
                        return self.cut()
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
