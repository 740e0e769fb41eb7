"""Surroundings of a script: environments in which packages are missing, a disk that a test can fill
and free, and ranks that each believe to be the only one of their host, so they may share a GPU.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torchbus_testing.scripts import Result, start


def empty_environment(folder: str | Path, *packages: str, without: str = "torchbus") -> str:
    """Make a virtual environment without torchbus; return its Python.

    It links what is installed here, except everything of torchbus and names that begin with
    ``without``. Nothing is copied or downloaded.

    ``packages`` can be imported nevertheless, without being installed. For example, ``"torchbus"``
    is a core that discovers no plugin.
    """
    venv.create(folder, with_pip=False)
    home = Path(folder).resolve()
    site = next(home.glob("lib*/python*/site-packages"), home / "Lib" / "site-packages")
    for path in map(Path, sys.path):
        if path.name in ("site-packages", "dist-packages"):
            _link_all(path, site, but=("torchbus", without))
    for package in packages:
        (site / package).symlink_to(Path(sys.modules[package].__file__ or "").parent)
    return str(
        next(
            path
            for path in (home / "bin" / "python", home / "Scripts" / "python.exe")
            if path.exists()
        )
    )


def _link_all(installed: Path, site: Path, but: tuple[str, ...]) -> None:
    """Link installed entries, except names that begin with one of ``but`` or already exist."""
    for entry in installed.iterdir():
        left_out = entry.name.startswith(but) or entry.suffix in (".pth", ".egg-link")
        if not left_out and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)


class SmallDisk:
    """A folder on a separate small disk, which can be filled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Use up all free space."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(b"\0" * size):
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Free the space that ``fill`` has used."""
        os.unlink(self._filler)


@contextmanager
def small_disk(path: Path, kib: int) -> Iterator[SmallDisk | None]:
    """Mount a tmpfs of ``kib`` KiB at ``path``, a new folder, and unmount it at the end.

    Yields None if this process has no permission to mount it.
    """
    path.mkdir()
    mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(path)], capture_output=True
        ).returncode
        == 0
    )
    try:
        yield SmallDisk(path) if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


SOCKETS = {
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_NCHANNELS": "2",
}
"""Variables that make NCCL use its socket transport, from its page of environment variables."""


def environments(world_size: int) -> list[dict[str, str]]:
    """Return the environment variables of each rank.

    NCCL refuses two ranks of one host on one GPU, so ``NCCL_HOSTID`` gives each rank another host.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    job = SOCKETS | address | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return [
        job
        | {"WORLD_SIZE": str(world_size), "RANK": str(rank), "GROUP_RANK": str(rank)}
        | {"NCCL_HOSTID": f"host{rank}"}
        for rank in range(world_size)
    ]


def run_on_separate_hosts(
    script: Sequence[str], world_size: int, timeout_s: float = 100
) -> list[Result]:
    """Run ``python *script`` as ``world_size`` ranks; return how each ended, in the order of ranks.

    Raises:
        TimeoutError: a rank does not end within ``timeout_s`` seconds.
    """
    command = [sys.executable, *script]
    with ExitStack() as running:
        ranks = [
            running.enter_context(start(command, env=dict(environment)))
            for environment in environments(world_size)
        ]
        return [rank.wait(timeout_s) for rank in ranks]
