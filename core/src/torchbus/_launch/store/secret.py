"""The job's key, which only its ranks know.

Ranks that the session starts get it from their parent, which makes a new key for each job. A
launcher's ranks have no such parent: they derive it from a secret of the user. The secret is in
TORCHBUS_KEY or, without that, in a file that only the user may read.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchbus._launch.store.roll_call import RollCall
from torchbus._launch.store.sealed import tag
from torchbus._ranks.world import SharedStore
from torchbus.errors import LaunchError, UsageError

VARIABLE = "TORCHBUS_KEY"
SHORTEST = 16
COMPARED = "torchbus key/compared"
STRANGER_S = 5.0  # another job may have written there first
REMEDY = (
    f"Set {VARIABLE} to the same secret on all hosts (python -c 'import secrets;"
    " print(secrets.token_hex())'), or let them share that file"
)


def new() -> bytes:
    """Make a key for ranks that the session starts."""
    return secrets.token_bytes(32)


def derived(port: int, world_size: int, job: str, environ: Mapping[str, str] = os.environ) -> bytes:
    """Derive the key of ranks that another launcher starts; all of them get the same.

    ``job``: the launcher's name for the job. Raises UsageError or LaunchError if there is no usable
    secret.
    """
    return tag(_of_the_user(environ), json.dumps([port, world_size, job]).encode())


def compare(store: SharedStore, rank: int, ranks: Sequence[int], takes_seat: bool = True) -> None:
    """Check that these ranks have rank 0's key; each of them calls it once. Rank 0 waits for all.

    Raises LaunchError on rank 0 and on each rank with a different key: later they could not tell
    each other. A rank also takes its seat, so that a second job at the port of the first gets an
    error. Pass ``takes_seat=False`` if the launcher may give the seat to another process.
    """
    if rank != 0 and not _has_signed(store, _seat(0)):
        store.leave(COMPARED, str(rank))  # rank 0 need not wait
        raise _unlike(str(rank))
    if takes_seat:
        _take_seat(store, rank)
    elif rank == 0:
        store.set(_seat(0), "")
    if RollCall(store, "has the key", ranks.index(rank), len(ranks)).say():
        store.set(COMPARED, "")
    if rank == 0 and not _has_signed(store, COMPARED):
        raise _unlike(store.unsigned(COMPARED).decode(errors="replace"))


def _take_seat(store: SharedStore, rank: int) -> None:
    mine = secrets.token_bytes(8)
    if store.compare_set(_seat(rank), "", mine) != mine:
        raise LaunchError(
            f"rank {rank} of the job that listens there has joined already: either it is another"
            f" job, or rank {rank} was started twice. Give each job a MASTER_PORT of its own"
        )


def _unlike(rank: str) -> LaunchError:
    return LaunchError(
        f"rank {rank} has a different key from rank 0: the ranks of a job recognise each other by"
        f" {VARIABLE} or, without it, by the secret in {places()[0]} of their host. {REMEDY}. If"
        " they are of two jobs: give each job a MASTER_PORT of its own"
    )


def _seat(rank: int) -> str:
    return f"torchbus key/{rank}"


def _has_signed(store: SharedStore, name: str) -> bool:
    store.wait(name)
    deadline = time.monotonic() + STRANGER_S
    while not (found := store.read(name) is not None) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def places() -> tuple[Path, Path]:
    """Return the places of the file with the user's secret: at home, and on this host.

    The second one, in a private folder, serves if no home folder is writable.
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
    told = []
    for file in places():
        try:
            if not file.exists():
                _make(file)
            return _read(file)
        except OSError as error:
            told.append(f"{file} ({error.strerror})")
    raise LaunchError(
        f"the secret of this user's jobs can be kept neither in {' nor in '.join(told)}. {REMEDY}"
    )


def _make(file: Path) -> None:
    """Make the file atomically; if several processes try, one of them makes it."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent)
    with os.fdopen(descriptor, "wb") as target:
        target.write(new())
    with contextlib.suppress(FileExistsError):
        os.link(temporary, file)
    os.unlink(temporary)


def _read(file: Path) -> bytes:
    """Read the secret; raise LaunchError if others may have read or written it."""
    with file.open("rb") as source:
        status, secret = os.fstat(source.fileno()), source.read(4096)
    folder = file.parent.stat()
    if len(secret) < SHORTEST or (
        os.name == "posix" and not (_is_private(status, 0o077) and _is_private(folder, 0o022))
    ):
        raise LaunchError(
            f"{file} is not secret: the file and its folder must be this user's, the file readable"
            " by nobody else (chmod 600), the folder writable by nobody else (chmod 700), and it"
            f" must hold {SHORTEST} bytes or more. Remove it, and the next job makes a new one."
            f" {REMEDY}"
        )
    return secret


def _is_private(status: os.stat_result, forbidden: int) -> bool:
    return not status.st_mode & forbidden and status.st_uid == os.geteuid()
