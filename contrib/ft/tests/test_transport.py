"""A replica sends its state only to replicas of this user, and accepts states only from them."""

from __future__ import annotations

import contextlib
import hmac
import io
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from torchbus_ft._compat import streaming_save
from torchbus_ft.transport import (
    ASKING_AT_MOST,
    BLOCK,
    QUESTION,
    CutAnswer,
    Foreign,
    Opened,
    Sealed,
    Tags,
    Transport,
)

KEY, SOON = b"k" * 32, timedelta(seconds=5)
STATE = {"steps": 3, "parameters": [torch.arange(700_000.0), torch.ones(2, dtype=torch.bool)]}


class Code:
    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._proof),)


@pytest.fixture
def made() -> Iterator[Callable[..., Transport]]:
    every: list[Transport] = []

    def make(key: bytes = KEY, host: str = "127.0.0.1", timeout_s: float = 5.0) -> Transport:
        every.append(Transport(host, key, timeout_s))
        return every[-1]

    yield make
    for one in every:
        one.shutdown()


class Kept(io.BytesIO):
    def close(self) -> None:
        """Stay open, so that the test can read what was written."""


def got(newcomer: Transport, source: str) -> Any:
    return newcomer.recv_checkpoint(0, source, 7, SOON)


def test_a_replica_gets_it(made: Callable[..., Transport]) -> None:
    source, newcomer = made(), made()
    early = threading.Timer(0.2, lambda: source.send_checkpoint([1], 7, STATE, SOON))
    early.start()
    found = got(newcomer, source.metadata())
    assert found["steps"] == 3 and newcomer.foreign == ""
    assert all(map(torch.equal, found["parameters"], STATE["parameters"]))
    source.disallow_checkpoint()


@pytest.mark.parametrize("host", ["::1", "192.0.2.1"])
def test_other_addresses(made: Callable[..., Transport], host: str) -> None:
    """One of IPv6, and one that this machine does not have, as if a host forwarded it."""
    port = made(host=host).metadata().rpartition(":")[2]
    assert int(port)


def first_byte(link: socket.socket, question: bytes) -> bytes:
    """What is answered. A server that closes before it has read everything resets the link."""
    try:
        link.sendall(question)
        with contextlib.suppress(OSError):  # the server has closed already
            link.shutdown(socket.SHUT_WR)
        return link.recv(1)
    except ConnectionError:
        return b""


def test_nothing_without_the_key(made: Callable[..., Transport]) -> None:
    source = made()
    source.send_checkpoint([1], 7, STATE, SOON)
    host, _, port = source.metadata().rpartition(":")
    for question in (
        b"",
        b"GET /checkpoint/7/full HTTP/1.1\r\n\r\n" * 9,
        QUESTION.pack(7, b"", b""),
    ):
        with socket.create_connection((host, int(port)), 5) as link:
            assert first_byte(link, question) == b""
    newcomer = made(b"another")
    for foreign in ("", "", source.metadata()):
        with pytest.raises(CutAnswer):
            got(newcomer, source.metadata())
        assert newcomer.foreign == foreign, "a replica that has just ended is not called a stranger"


class Stranger:
    """Answers one question as it likes."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._listener, self._listener.accept()[0] as asking:
            question = asking.recv(QUESTION.size, socket.MSG_WAITALL)
            asking.sendall(self._answer(question))

    def refused_by(self, newcomer: Transport, is_cut: bool = False) -> None:
        self._thread.start()
        with pytest.raises(CutAnswer if is_cut else Foreign):
            got(newcomer, self.address)
        self._thread.join()
        assert newcomer.foreign == ("" if is_cut else self.address)


def test_a_question_is_for_one_address(made: Callable[..., Transport]) -> None:
    """So another program can't pass a replica's question on to a real replica."""
    source = made()
    source.send_checkpoint([1], 7, STATE, SOON)
    host, _, port = source.metadata().rpartition(":")
    passed: list[bytes] = []

    def pass_on(question: bytes) -> bytes:
        with socket.create_connection((host, int(port)), 5) as link, link.makefile("rb") as file:
            link.sendall(question)
            passed.append(file.read())
        return passed[0]

    Stranger(pass_on).refused_by(made(), is_cut=True)
    assert passed == [b""]


def drip(link: socket.socket, content: bytes) -> None:
    with contextlib.suppress(OSError):
        for byte in content:
            link.sendall(bytes([byte]))
            time.sleep(0.1)


def test_a_stranger_that_sends_a_byte_now_and_then(made: Callable[..., Transport]) -> None:
    """It delays neither side for longer than the timeout."""
    replica = made(timeout_s=0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as asking:
                drip(asking, BLOCK.pack(1 << 20, b"t" * 32))

        stranger = threading.Thread(target=answer)
        stranger.start()
        begun_s = time.monotonic()
        with pytest.raises(TimeoutError):
            got(replica, f"127.0.0.1:{listener.getsockname()[1]}")
        assert time.monotonic() - begun_s < 2.0
        stranger.join()
    host, _, port = replica.metadata().rpartition(":")
    begun_s = time.monotonic()
    with socket.create_connection((host, int(port)), 5) as link:
        drip(link, b"x" * (QUESTION.size - 1))
    assert time.monotonic() - begun_s < 2.0


def test_many_strangers_that_say_nothing(made: Callable[..., Transport]) -> None:
    source, newcomer = made(), made()
    source.send_checkpoint([1], 7, STATE, SOON)
    host, _, port = source.metadata().rpartition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(ASKING_AT_MOST):
            stack.enter_context(socket.create_connection((host, int(port)), 5))
        with socket.create_connection((host, int(port)), 30) as one_more:
            assert one_more.recv(1) == b""
    deadline_s = time.monotonic() + 30
    while True:  # the replica soon notices that the connections are closed
        try:
            assert got(newcomer, source.metadata())["steps"] == 3
            break
        except (OSError, CutAnswer):
            assert time.monotonic() < deadline_s


def sealed(key: bytes, about: bytes, content: bytes) -> bytes:
    buffer = io.BytesIO()
    for number, block in enumerate((content, b"")):
        tag = hmac.digest(key, about + number.to_bytes(8, "big") + block, "sha256")
        buffer.write(BLOCK.pack(len(block), tag) + block)
    return buffer.getvalue()


def test_a_strangers_state(made: Callable[..., Transport], tmp_path: Path) -> None:
    """No code of it runs, and no more is read than a block may have."""
    buffer = io.BytesIO()
    streaming_save(Code(tmp_path / "proof"), buffer)
    evil = sealed(b"a stranger's", b"127.0.0.1", buffer.getvalue())
    for answer in (evil, b"\xff" * 99, BLOCK.pack(1 << 31, b"")):
        Stranger(lambda question, answer=answer: answer).refused_by(made())  # type: ignore
    for answer in (b"", b"HTTP/1.0 200 OK\r\n\r\n"):
        Stranger(lambda question, answer=answer: answer).refused_by(made(), True)  # type: ignore
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("where", [0, 50, 5000, -1])
def test_a_changed_answer(where: int) -> None:
    """A reader rejects another byte, an early end, and blocks in another order."""
    written = Kept()
    with Sealed(written, Tags(KEY, b"about")) as file:
        for number in range(3):
            file.write(bytes([number]) * 3000)
    answer = written.getvalue()

    def read(content: bytes) -> bytes:
        return io.BufferedReader(Opened(io.BytesIO(content), Tags(KEY, b"about"))).read()

    assert len(read(answer)) == 9000
    at, size = where % len(answer), BLOCK.size + 3000
    for other in (
        answer[:at] + bytes([answer[at] ^ 1]) + answer[at + 1 :],
        answer[:at],
        answer[size : 2 * size] + answer[:size] + answer[2 * size :],
    ):
        with pytest.raises(Foreign):
            read(other)
