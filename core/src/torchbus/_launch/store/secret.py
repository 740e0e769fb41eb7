"""The job's key: what its ranks know, and nobody else.

Ranks that the session starts get it from their parent, new for each job. Those that another launcher starts have no parent of ours: they make it of
a secret of the user's, which is in TORCHBUS_KEY or, without that, in a file that the user alone may read.
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

from torchbus._launch.store.sealed import SealedStore, tag
from torchbus.errors import LaunchError, UsageError

VARIABLE = "TORCHBUS_KEY"
SHORTEST = 16
STRANGER_S = 1.0  # a stranger's may have been there first
REMEDY = (
    f"Give {VARIABLE} one secret on all hosts (python -c 'import secrets; print(secrets.token_hex())'), or let them share that file"
)


def new() -> bytes:
    """For ranks that the session starts."""
    return secrets.token_bytes(32)


def derived(port: int, world_size: int, environ: Mapping[str, str] = os.environ) -> bytes:
    """For ranks that another launcher starts: the same in all of them. Raises UsageError and LaunchError where there is no secret."""
    job = json.dumps([port, world_size, environ.get("TORCHELASTIC_RUN_ID", "")])
    return tag(_of_the_user(environ), job.encode())


def compare(store: SealedStore, rank: int, ranks: Sequence[int]) -> None:
    """Each of these ranks calls it, once. Raises LaunchError on rank 0 and on one whose key is not rank 0's: they could not tell each other later."""
    store.set(f"torchbus key/{rank}", "")
    for other in ranks if rank == 0 else [0]:
        if not _has_signed(store, f"torchbus key/{other}"):
            raise LaunchError(
                f"rank {rank or other} has another key than rank 0: the ranks of a job know each other by {VARIABLE} or, without it, by the "
                f"secret in {places()[0]} of the host they are on. {REMEDY}"
            )


def _has_signed(store: SealedStore, name: str) -> bool:
    store.wait(name)
    deadline = time.monotonic() + STRANGER_S
    while not (found := store.read(name) is not None) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def places() -> tuple[Path, Path]:
    """The file with the user's secret; where no home can be written to, in a folder of this host's that is the user's alone."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config"))
    user = os.geteuid() if os.name == "posix" else getpass.getuser()
    return home / "torchbus" / "key", Path(tempfile.gettempdir(), f"torchbus-{user}", "key")


def _of_the_user(environ: Mapping[str, str]) -> bytes:
    given = environ.get(VARIABLE)
    if given is None:
        return _in_file()
    if len(given) < SHORTEST:
        raise UsageError(f"{VARIABLE} has {len(given)} characters, which can be guessed: {SHORTEST} are the least. {REMEDY}")
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
    raise LaunchError(f"the secret of this user's jobs can be kept neither in {' nor in '.join(told)}. {REMEDY}")


def _make(file: Path) -> None:
    """Whole or not at all, and one of several processes at once."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent)
    with os.fdopen(descriptor, "wb") as target:
        target.write(new())
    with contextlib.suppress(FileExistsError):
        os.link(temporary, file)
    os.unlink(temporary)


def _read(file: Path) -> bytes:
    """Raises LaunchError where others may know or have written it."""
    with file.open("rb") as source:
        status, secret = os.fstat(source.fileno()), source.read(4096)
    folder = file.parent.stat()
    if len(secret) < SHORTEST or (os.name == "posix" and not (_is_private(status, 0o077) and _is_private(folder, 0o022))):
        raise LaunchError(
            f"{file} is no secret: the file and its folder must be this user's, the file readable by nobody else (chmod 600), the folder writable by "
            f"nobody else (chmod 700), and it must hold {SHORTEST} bytes or more. Remove it, and the next job makes a new one. {REMEDY}"
        )
    return secret


def _is_private(status: os.stat_result, forbidden: int) -> bool:
    return not status.st_mode & forbidden and status.st_uid == os.geteuid()
