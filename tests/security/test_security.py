"""On a machine that is shared with others: what listens, who is believed, and what is unpickled."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from meetings import environment, free_port

from torchbus_testing.scripts import run_script, start

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
NOBODY = 65534
# 127.0.0.1 and ::1, as /proc/net writes them
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


def is_reachable_by_nobody() -> bool:
    """Whether another user can run this Python at all."""
    command = [
        sys.executable,
        "-c",
        f"open({torch.__file__!r}); open({str(SCRIPTS / 'stranger.py')!r})",
    ]
    try:
        return (
            subprocess.run(
                command, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True
            ).returncode
            == 0
        )
    except (PermissionError, AttributeError, ValueError):
        return False


@pytest.fixture(scope="module")
def as_nobody():
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    if not is_reachable_by_nobody():
        pytest.skip("another user can't read this Python's files")


def listeners(pids: list[int]) -> set[str]:
    """Hexadecimal addresses at which these processes listen."""
    own = set()
    for entry in (entry for pid in pids for entry in Path("/proc", str(pid), "fd").iterdir()):
        with contextlib.suppress(OSError):
            own.add(os.readlink(entry))
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    return {
        line[1].split(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own
    }


def places(folder: Path, seconds: float = 60) -> list[list[int]]:
    """Process id and the store's port of each of the two ranks, once they train."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return json.loads((folder / "ranks.json").read_text())
        time.sleep(0.05)
    raise AssertionError("the ranks do not train")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("launch", ["fork", pytest.param("environment", marks=pytest.mark.slow)])
def test_a_stranger_gets_nothing(tmp_path: Path, as_nobody: None, launch: str) -> None:
    """Ranks go on as if nobody were there, though the stranger writes whatever is written to their
    store.
    """
    command = [sys.executable, str(SCRIPTS / "shared_machine.py"), str(tmp_path), launch]
    port = free_port()
    ranks = (
        [environment(rank, port, tmp_path / "home") for rank in range(2)]
        if launch == "environment"
        else [{"OMP_NUM_THREADS": "1"}]
    )
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(start(command, env=env)) for env in ranks]
        found = places(tmp_path)
        assert listeners([pid for pid, _ in found]) <= LOOPBACK
        words = [
            sys.executable,
            str(SCRIPTS / "stranger.py"),
            str(found[0][1]),
            str(tmp_path / "proof"),
            ",".join(str(pid) for pid, _ in found),
        ]
        told = subprocess.run(
            words,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
        )
        (tmp_path / "done").touch()
        results = [one.wait(60) for one in running]
    assert not (tmp_path / "proof").exists()
    for result in results:
        assert result.ok() and "ended well" in result.stdout
        assert "made up" not in result.stderr and "stranger" not in result.stderr, result.stderr
    assert json.loads(told.stdout) == {"uid": NOBODY, "read": [], "reached": True}, told.stderr


UNPICKLED = {
    "plugins/strategy/src/torchbus_strategy/collectives.py": "what all ranks of a process group sent, each signed with the job's key",
    "plugins/launch/src/torchbus_launch/spawn.py": "what the parent writes to the standard input of a rank that it has started",
    "plugins/pipeline/src/torchbus_pipeline/divergence.py": "an error that this rank has just pickled itself, to see whether it can be sent",
    "contrib/ft/src/torchbus_ft/_compat.py": "the state of another replica, each block of it signed with the key of the user's replicas",
    "plugins/verify/src/torchbus_verify/watch/alone.py": "inputs of a step, which each rank sends in such a signed message",
}


def test_pickles_are_read_in_listed_places_only() -> None:
    """Each with its reason, which docs/security.md gives too."""
    sources = [
        path
        for root in ("core", "plugins", "contrib")
        for path in (ROOT / root).rglob("src/**/*.py")
    ]
    unsafe = re.compile(r"pickle\.(loads?|Unpickler)\b|weights_only=False|\bdist\.\w+_object")
    found = {
        path.relative_to(ROOT).as_posix()
        for path in sources
        if unsafe.search(path.read_text(encoding="utf-8"))
    }
    # an unpickler that makes records of its own, and calls nothing
    limited = {"plugins/checkpoint/src/torchbus_checkpoint/disk/pickled.py"}
    assert found - limited == set(UNPICKLED)
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    assert [path for path in (*UNPICKLED, *limited) if path.partition("src/")[2] not in page] == []


FORGED = """
    import os, sys
    import torch
    from torchbus import session

    class Code:
        def __reduce__(self):
            return os.system, ("touch " + sys.argv[1],)

    with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork") as s:
        if s.rank == 1:
            s.world.store.key = b"a stranger's"
        s.all_gather_object(Code() if s.rank == 1 else None)
"""


def test_a_pickle_by_a_stranger_in_the_group_is_not_read(tmp_path: Path) -> None:
    result = run_script(FORGED, tmp_path / "proof", env={"OMP_NUM_THREADS": "1"})
    assert (
        result.status == 1
        and "a message from rank 1 is not signed with this job's key: another program has"
        in result.stderr
    )
    assert not (tmp_path / "proof").exists()
