"""Sends a replica's state, signed with the user's key, and rejects states without the signature.

A new replica asks with random bytes and their tag. Each block of the answer has a tag of these
bytes, the block's number and its content. The state is a pickle, which may run code, so a block is
read only if its tag is valid.
"""

from __future__ import annotations

import hmac
import io
import secrets
import socket
import socketserver
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import IO, Any

import torch

from torchbus_ft._compat import streaming_load, streaming_save

TAG_BYTES, ASKED_BYTES, MOST_BYTES = 32, 16, 1 << 20
QUESTION = struct.Struct(f">q{ASKED_BYTES}s{TAG_BYTES}s")
BLOCK = struct.Struct(f">I{TAG_BYTES}s")
CUT_AT_MOST, ASKING_AT_MOST = 3, 32


class Foreign(RuntimeError):
    """The received state is not signed by a replica of this user."""


class CutAnswer(Foreign):
    """The answer ends early: the other replica has just ended, or has another key."""


class Transport:
    """Sends states between replicas, as a ``CheckpointTransport`` of torchft.

    ``host`` is the address of this machine for the other replicas. ``foreign`` is the address that
    has answered the last question without the key, or "". An address counts as foreign after three
    answers that end early.
    """

    def __init__(self, host: str, key: bytes, timeout_s: float) -> None:
        self._key = key
        self._timeout_s = timeout_s
        self._offered: tuple[int, Any] | None = None
        self._readers = 0
        self._ended = False
        self._changed = threading.Condition()
        self.foreign = ""
        self._cut: Counter[str] = Counter()
        self._server = _Server(host, self._asked, self._answer, timeout_s)
        self._address = f"{host}:{self._server.socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def metadata(self) -> str:
        """Return the address at which other replicas get the state."""
        return self._address

    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta
    ) -> None:
        """Offer the state until ``disallow_checkpoint``."""
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        with self._changed:
            self._offered = step, state_dict
            self._changed.notify_all()

    def disallow_checkpoint(self) -> None:
        """Stop offering the state, and wait until it is sent. Afterwards it may change.

        Raises TimeoutError if another replica reads too slowly.
        """
        with self._changed:
            self._offered = None
            if not self._changed.wait_for(lambda: not self._readers, self._timeout_s):
                raise TimeoutError("a replica does not read the state that it has asked for")

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        """Return the state of another replica.

        Raises Foreign if the state is not signed with the key, CutAnswer if it ends early, and
        OSError if the replica does not answer in time. The next quorum names another replica.
        """
        asked = secrets.token_bytes(ASKED_BYTES)
        about = _about(metadata, step, asked)
        host, _, port = metadata.rpartition(":")
        self.foreign = ""
        try:
            with socket.create_connection((host, int(port)), self._timeout_s) as link:
                link.sendall(QUESTION.pack(step, asked, self._tag(b"asks" + about)))
                answer = Punctual(link, self._timeout_s)
                return streaming_load(io.BufferedReader(Opened(answer, Tags(self._key, about))))
        except Foreign as error:
            self._cut[metadata] += 1
            if not isinstance(error, CutAnswer) or self._cut[metadata] >= CUT_AT_MOST:
                self.foreign = metadata
            raise

    def shutdown(self, wait: bool = True) -> None:
        """End the server, and the threads that wait for a state."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _asked(self, link: Punctual) -> tuple[int, bytes] | None:
        """Read a question. Return the step of the state, and the signed text; None if invalid."""
        text = link.read(QUESTION.size)
        if len(text) != QUESTION.size:
            return None
        step, asked, tag = QUESTION.unpack(text)
        about = _about(self._address, step, asked)
        return (step, about) if hmac.compare_digest(tag, self._tag(b"asks" + about)) else None

    def _answer(self, step: int, about: bytes, answer: IO[bytes]) -> None:
        with (
            self._reading(step) as state,
            io.BufferedWriter(Sealed(answer, Tags(self._key, about)), MOST_BYTES) as file,
        ):
            streaming_save(state, file)

    @contextmanager
    def _reading(self, step: int) -> Iterator[Any]:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._has(step), self._timeout_s)
            if not self._has(step) or self._offered is None:
                raise OSError("no such state")
            state = self._offered[1]
            self._readers += 1
        try:
            yield state
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    def _has(self, step: int) -> bool:
        return self._offered is not None and self._offered[0] == step

    def _tag(self, message: bytes) -> bytes:
        return hmac.digest(self._key, message, "sha256")


def _about(address: str, step: int, asked: bytes) -> bytes:
    """Return the text that a tag signs. The address stops a server from reusing the question."""
    return f"{address} {step} ".encode() + asked


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(
        self,
        host: str,
        asked: Callable[[Punctual], tuple[int, bytes] | None],
        answer: Callable[[int, bytes, Any], None],
        timeout_s: float,
    ) -> None:
        asking = threading.Semaphore(ASKING_AT_MOST)

        class TransportHandler(socketserver.StreamRequestHandler):
            timeout = timeout_s

            def handle(self) -> None:
                if not asking.acquire(blocking=False):
                    return
                try:
                    question = asked(Punctual(self.connection, timeout_s))
                finally:
                    asking.release()
                if question is not None:
                    answer(*question, self.wfile)

        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, 0), TransportHandler)
        except OSError:  # the address may be that of a host that forwards to this one
            super().__init__(("", 0), TransportHandler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: the client has disconnected, or is not a replica."""


class Punctual:
    """Reads from a connection with a total time limit, however slowly the bytes arrive."""

    def __init__(self, link: socket.socket, timeout_s: float) -> None:
        self._link, self._timeout_s = link, timeout_s

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, or fewer at the end. Raises TimeoutError after the time limit."""
        block, count = bytearray(size), 0
        deadline_s = time.monotonic() + self._timeout_s
        while count < size:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            self._link.settimeout(left_s)
            received = self._link.recv_into(memoryview(block)[count:])
            if not received:
                break
            count += received
        self._link.settimeout(self._timeout_s)
        return bytes(block[:count])


class Tags:
    """Makes the tags of an answer's blocks, which depend on the order of the blocks."""

    def __init__(self, key: bytes, about: bytes) -> None:
        self._key, self._about, self._count = key, about, 0

    def next(self, block: bytes) -> bytes:
        number = self._count.to_bytes(8, "big")
        self._count += 1
        return hmac.digest(self._key, self._about + number + block, "sha256")


class Sealed(io.RawIOBase):
    """Writes blocks with their lengths and tags. The last block is empty."""

    def __init__(self, file: IO[bytes], tags: Tags) -> None:
        self._file, self._tags = file, tags

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        block = bytes(memoryview(data).cast("B")[:MOST_BYTES])
        self._file.write(BLOCK.pack(len(block), self._tags.next(block)) + block)
        return len(block)

    def close(self) -> None:
        if not self.closed:
            self.write(b"")
        super().close()


class Opened(io.RawIOBase):
    """Reads sealed blocks.

    Raises Foreign for a block with an invalid tag, and CutAnswer if a block is missing.
    """

    def __init__(self, file: IO[bytes] | Punctual, tags: Tags) -> None:
        self._file, self._tags = file, tags
        self._block, self._is_last = memoryview(b""), False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._block and not self._is_last:
            self._block = memoryview(self._next())
            self._is_last = not self._block
        size = min(len(buffer), len(self._block))
        buffer[:size], self._block = self._block[:size], self._block[size:]
        return size

    def _next(self) -> bytes:
        head = self._file.read(BLOCK.size)
        size, tag = BLOCK.unpack(head) if len(head) == BLOCK.size else (0, b"")
        block = self._file.read(size) if size <= MOST_BYTES else b""
        if len(head) < BLOCK.size or len(block) < size <= MOST_BYTES:
            raise CutAnswer("the state ends early")
        if not hmac.compare_digest(tag, self._tags.next(block)):
            raise Foreign("a block of the state is not signed with the replicas' key")
        return block
