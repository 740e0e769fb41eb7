"""The job's key, which only its ranks know.

Ranks that the session starts get it from their parent, which makes a new key for each job. A
launcher's ranks have no such parent: they derive it from a secret of the user. The secret is in
TORCHBUS_KEY or, without that, in a file that only the user may read.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import hmac
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchbus.errors import LaunchError, UsageError

from torchbus_launch import store as launch_store
from torchbus_launch.store import SealedStore, StoreBarrier, tag

VARIABLE = "TORCHBUS_KEY"
SHORTEST = 16
COMPARED = "torchbus key/compared"
ANSWER = "torchbus key/answer"
ASKED_BYTES, NUMBER_BYTES = 16, 32
NO_LINK: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
FLAGS = os.O_CREAT | os.O_WRONLY | NO_LINK
STRANGER_S = 5.0  # how long to wait for a signed value if another job has written one first
REMEDY = (
    f"Set {VARIABLE} to the same secret on all hosts (python -c 'import secrets;"
    " print(secrets.token_hex())'), or let them share that file"
)


def new() -> bytes:
    """Make a key for ranks that the session starts."""
    return secrets.token_bytes(32)


def derived(port: int, world_size: int, job: str, environ: Mapping[str, str] = os.environ) -> bytes:
    """Derive the key of ranks that another launcher starts; all of them get the same.

    ``job`` is the launcher's name for the job. Raises UsageError or LaunchError if there is no
    usable secret.
    """
    return tag(_of_the_user(environ), json.dumps([port, world_size, job]).encode())


def compare(store: SealedStore, rank: int, ranks: Sequence[int], takes_seat: bool = True) -> None:
    """Check that these ranks have rank 0's key; each of them calls it once. Rank 0 waits for all.

    Raises LaunchError on rank 0 and on each rank with a different key, which could not report to
    the others later. A rank also takes its seat, so that a second job at the port of the first gets
    an error. Pass ``takes_seat=False`` if the launcher may give the seat to another process.
    """
    if rank != 0 and not _has_signed(store, _seat(0)):
        store.leave(COMPARED, str(rank))  # rank 0 need not wait
        raise _unlike(str(rank))
    if takes_seat:
        _take_seat(store, rank)
    elif rank == 0:
        store.set(_seat(0), "")
    if StoreBarrier(store, "has the key", ranks.index(rank), len(ranks)).say():
        store.set(COMPARED, "")
    if rank == 0 and not _has_signed(store, COMPARED):
        raise _unlike(store.unsigned(COMPARED).decode(errors="replace"))


def drawn(store: SealedStore, rank: int, world_size: int) -> bytes:
    """Return the key of this start of the job, from a number that rank 0 draws.

    The user's secret alone would accept replayed messages of an earlier job at the same port. So
    each rank sends fresh random bytes, and rank 0 signs its number together with them. Then each
    rank shows rank 0 that it has the number. All ranks call it.
    """
    if world_size == 1:
        return _with_number(store.key, new())
    deadline = time.monotonic() + store.timeout_s
    pause_s = launch_store.pause_s(0.005, world_size)
    if rank != 0:
        mine = secrets.token_bytes(ASKED_BYTES)
        store.set(_asked(rank), mine)
        at = NUMBER_BYTES + ASKED_BYTES * (rank - 1)
        while mine != (answer := store.read(ANSWER) or b"")[at : at + ASKED_BYTES]:
            _pause(pause_s, deadline, "rank 0 did not answer")
        key = _with_number(store.key, answer[:NUMBER_BYTES])
        SealedStore(store.raw, key, store.prefix).set(_shown(rank), "")
        return key
    number, asked, others = new(), b"", range(1, world_size)
    key = _with_number(store.key, number)
    fresh = SealedStore(store.raw, key, store.prefix)
    while not fresh.check([_shown(one) for one in others]):
        found = store.read_all([_asked(one) for one in others])
        if found is not None and asked != b"".join(found):
            asked = b"".join(found)
            store.set(ANSWER, number + asked)
        _pause(pause_s, deadline, "a rank did not ask for rank 0's number")
    return key


def _pause(seconds: float, deadline: float, problem: str) -> None:
    if time.monotonic() > deadline:
        raise LaunchError(f"{problem} within the session's timeout: one of them may have ended")
    time.sleep(seconds)


def _with_number(key: bytes, number: bytes) -> bytes:
    return hmac.digest(key, b"number of this start\0" + number, "sha256")


def _asked(rank: int) -> str:
    return f"torchbus key/asked {rank}"


def _shown(rank: int) -> str:
    return f"torchbus key/shown {rank}"


def _take_seat(store: SealedStore, rank: int) -> None:
    mine = secrets.token_bytes(8)
    if store.compare_set(_seat(rank), "", mine) != mine:
        raise LaunchError(
            f"rank {rank} of the job that listens there has joined already: either it is another"
            f" job, or rank {rank} was started twice. Set a different MASTER_PORT for each job"
        )


def _unlike(rank: str) -> LaunchError:
    return LaunchError(
        f"rank {rank} has a different key from rank 0: the ranks of a job recognise each other by"
        f" {VARIABLE} or, without it, by the secret in {places()[0]} of their host. {REMEDY}. If"
        " they belong to two jobs, set a different MASTER_PORT for each"
    )


def _seat(rank: int) -> str:
    return f"torchbus key/{rank}"


def _has_signed(store: SealedStore, name: str) -> bool:
    store.wait(name)
    deadline = time.monotonic() + STRANGER_S
    while not (found := store.read(name) is not None) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def places() -> tuple[Path, Path]:
    """Return the paths of the file with the user's secret: at home, and on this host.

    The second one, in a private temporary folder, is used if the first one can't be.
    """
    home = Path(
        os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    )
    user = os.geteuid() if os.name == "posix" else getpass.getuser()
    return home / "torchbus" / "key", Path(tempfile.gettempdir(), f"torchbus-{user}", "key")


def _of_the_user(environ: Mapping[str, str]) -> bytes:
    given = environ.get(VARIABLE)
    if given is None:
        return _in_file()
    if len(given) < SHORTEST:
        raise UsageError(
            f"{VARIABLE} has {len(given)} characters and can be guessed: use at least"
            f" {SHORTEST}. {REMEDY}"
        )
    return hashlib.sha256(given.encode()).digest()


def _in_file() -> bytes:
    reported = []
    for file in places():
        try:
            if not file.exists():
                _make(file)
            return _read(file)
        except OSError as error:
            reported.append(f"{file} ({error.strerror})")
    raise LaunchError(
        f"the secret of this user's jobs can be stored neither in {' nor in '.join(reported)}."
        f" {REMEDY}"
    )


def _make(file: Path) -> None:
    """Make the file atomically; if several processes try, one of them makes it.

    In the temporary directory, another user may have created the folder. So it is made under a
    random name and then renamed, which can't replace such a folder with a file in it.
    """
    if file == places()[1]:
        made = Path(tempfile.mkdtemp(prefix=f"{file.parent.name}-", dir=file.parent.parent))
        _write(made / file.name)
        try:
            os.rename(made, file.parent)
        except OSError:
            shutil.rmtree(made)
            if not file.exists():
                raise
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent)
    os.close(descriptor)
    _write(Path(temporary))
    with contextlib.suppress(FileExistsError):
        os.link(temporary, file)
    os.unlink(temporary)


def _write(file: Path) -> None:
    with os.fdopen(os.open(file, FLAGS, 0o600), "wb") as target:
        target.write(new())


def _read(file: Path) -> bytes:
    """Read the secret; raise LaunchError if others may have read or written it."""
    descriptor = os.open(file, os.O_RDONLY | NO_LINK)
    with os.fdopen(descriptor, "rb") as source:
        status, secret = os.fstat(source.fileno()), source.read(4096)
    folder = file.parent.lstat() if file == places()[1] else file.parent.stat()
    if len(secret) < SHORTEST or (
        os.name == "posix" and not (_is_private(status, 0o077) and _is_private(folder, 0o022))
    ):
        raise LaunchError(
            f"{file} is not secret: the file and its folder must be this user's, the file readable"
            " only by this user (chmod 600), the folder writable only by this user (chmod 700), and"
            f" it must hold {SHORTEST} bytes or more. Remove it, and the next job makes a new one."
            f" {REMEDY}"
        )
    return secret


def _is_private(status: os.stat_result, forbidden: int) -> bool:
    return not status.st_mode & forbidden and status.st_uid == os.geteuid()
