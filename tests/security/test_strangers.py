"""Another user of the machine makes noise at the ports of a job, and takes names before it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torchbus import bootstrap

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import run_script

ROOT = Path(__file__).parents[2]
NOISE = Path(__file__).parent / "scripts" / "noise.py"
STRANGERS = (65534, 65533)
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}  # as /proc/net writes them
ANY_PYTHON = shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin")


@pytest.fixture(scope="module")
def any_python() -> str:
    """One that another user can run."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not os.path.isdir("/proc"):
        pytest.skip("only root, on Linux, can start a process of another user")
    if ANY_PYTHON is None:
        pytest.skip("another user has no Python here")
    return ANY_PYTHON


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others can enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def _as(user: int, command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        user=user,
        group=user,
        extra_groups=[],
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
    )


def descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(child)
            yield from descendants(int(child))


def listening(pids: list[int]) -> Iterator[tuple[str, int]]:
    """Where these processes listen: address and port."""
    own = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    own.add(os.readlink(entry))
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                address, port = words[1].split(":")
                yield address, int(port, 16)


class Noise:
    """Two strangers attack whatever this process's descendants listen at."""

    def __init__(self, python: str, folder: Path) -> None:
        self._folder = folder
        script = Path(shutil.copy(NOISE, folder))
        words = [python, str(script), str(folder / "ports"), str(folder / "pids"), str(folder)]
        self.addresses: set[str] = set()
        self.found: list[list[object]] = []
        self._strangers = [_as(user, words) for user in STRANGERS]
        self._spared = {one.pid for one in self._strangers}
        self._thread = threading.Thread(target=self._follow)

    def _follow(self) -> None:
        while not (self._folder / "end").exists():
            pids = [pid for pid in descendants(os.getpid()) if pid not in self._spared]
            found = [*listening(pids)]
            self.addresses |= {address for address, _ in found}
            self._put("ports", [port for _, port in found])
            self._put("pids", pids)
            time.sleep(0.02)

    def _put(self, name: str, numbers: list[int]) -> None:
        whole = self._folder / f"{name}.part"
        whole.write_text(" ".join(map(str, numbers)))
        whole.replace(self._folder / name)

    def __enter__(self) -> Noise:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        (self._folder / "end").touch()
        self._thread.join()
        for one in self._strangers:
            with one:
                self.found.append(json.loads(one.communicate()[0]))


IMPORTS = """
import hashlib, os, time
import torch
from torchbus import current, session
"""
JOB = (
    IMPORTS
    + """
with session(strategy="STRATEGY", devices=2, accelerator="cpu", launch="fork") as s:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).mean().backward()
        optimizer.step()
        time.sleep(0.05)
    s.all_gather_object(s.rank)
    state = model.state_dict()
print(hashlib.sha256(repr(state).encode()).hexdigest())
"""
)


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("pipeline", marks=pytest.mark.slow)])
def test_noise_at_the_ports(any_python: str, folder: Path, strategy: str) -> None:
    """From before the start until after the end: the numbers are those of a quiet machine."""
    job = JOB.replace("STRATEGY", strategy)
    quiet = fork_script(job)
    with Noise(any_python, folder) as noise:
        noisy = fork_script(job, timeout_s=100)
    assert noisy.ok().stdout == quiet.ok().stdout
    assert noise.addresses and noise.addresses <= LOOPBACK
    for uid, entered, attacked, read in noise.found:
        assert uid in STRANGERS and read == []
        assert isinstance(entered, int) and entered > 0 and attacked


LATE = """
from torchbus import hookimpl
class Late:
    asked = 0
    @hookimpl(tryfirst=True)
    def init_process_group(self, session):
        self.asked += 1
        if session.rank == 1 and self.asked == 1:
            time.sleep(2)
"""


def test_a_stranger_that_connects_before_a_rank(any_python: str, folder: Path) -> None:
    """gloo takes it for the rank, and reads what it sends: the ranks notice, and connect again."""
    job = JOB.replace("STRATEGY", "ddp")
    quiet = fork_script(job).ok()
    late = job.replace(IMPORTS, IMPORTS + LATE).replace("session(", "session(Late(), ")
    with Noise(any_python, folder):
        noisy = fork_script(late, timeout_s=100)
    assert noisy.ok().stdout == quiet.stdout


SLOW = """
import torch.distributed as dist
from torchbus import hookimpl
class Slow:
    asked = 0
    @hookimpl
    def init_process_group(self, session, backend, store, timeout):
        self.asked += 1
        dist.init_process_group(
            backend, store=store, timeout=timeout, rank=session.rank, world_size=2
        )
        if session.rank == 0 and self.asked == 1:
            while not session.world.shared.check(["unproven torchbus 0"]):
                time.sleep(0.05)
            time.sleep(0.5)
            dist.isend(torch.zeros(1), 1)
        return True
"""


def test_a_rank_that_is_slow_to_make_the_group() -> None:
    """The other one has given up its proof: it leaves its connections open until both are there."""
    job = JOB.replace("STRATEGY", "ddp")
    quiet = fork_script(job).ok()
    slow = job.replace(IMPORTS, IMPORTS + SLOW).replace("session(", "session(Slow(), ")
    assert fork_script(slow, timeout_s=100).ok().stdout == quiet.stdout


DEAF = """
from torchbus_strategy import connections
connections.shut = lambda sockets: None
receives, held = connections._receives_proofs, []
def silent_first(session, group, *args):
    if session.rank == 0 and not held:
        held.append(group)
        return False
    return receives(session, group, *args)
connections._receives_proofs = silent_first
"""


@pytest.mark.slow
def test_a_stranger_whose_connection_can_not_be_ended() -> None:
    """gloo does not notice its end while it has no buffer for what the stranger has sent."""
    job = JOB.replace("STRATEGY", "ddp")
    quiet = fork_script(job).ok()
    deaf = fork_script(job.replace(IMPORTS, IMPORTS + DEAF), timeout_s=150)
    assert deaf.ok().stdout == quiet.stdout


def test_a_group_that_can_not_be_made() -> None:
    result = fork_script("""
import os
from torchbus import hookimpl, session
class Elsewhere:
    @hookimpl(tryfirst=True)
    def init_process_group(self):
        os.environ["GLOO_SOCKET_IFNAME"] = "eth77"
with session(Elsewhere(), strategy="ddp", devices=2, accelerator="cpu", launch="fork"):
    print("started")
""")
    assert result.status == 1 and result.stdout == ""
    assert "the gloo process group could not be made. Run `torchbus doctor`" in result.stderr
    assert "gloo says: " in result.stderr and "eth77" in result.stderr.split("gloo says: ")[1]


def test_a_stranger_that_is_connected_at_each_attempt() -> None:
    """What comes through gloo's connections is never what the ranks send."""
    result = fork_script("""
import torch, torch.distributed as dist
from torchbus import session
exchange = dist.ProcessGroup.alltoall_base
def of_a_stranger(group, received, sent, *more):
    return exchange(group, received, torch.zeros_like(sent), *more)
dist.ProcessGroup.alltoall_base = of_a_stranger
with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork"):
    print("started")
""")
    assert result.status == 1 and "started" not in result.stdout
    assert ": another program connects to gloo's ports in the place" in result.stderr
    assert (
        "at each of 11 attempts. End it, or name in GLOO_SOCKET_IFNAME a network" in result.stderr
    )


SPAWNED = (
    IMPORTS
    + """
@session(strategy="ddp_spawn", devices=2, accelerator="cpu")
def main():
    s = current()
"""
    + JOB.partition(" as s:")[2].replace("print(", "    print(")
    + """
if __name__ == "__main__":
    main()
"""
)


@pytest.mark.slow
def test_noise_at_the_ports_of_spawned_ranks(any_python: str, folder: Path) -> None:
    """Their key is in a variable, and the call comes by a pipe."""
    quiet = fork_script(JOB.replace("STRATEGY", "ddp")).ok()
    with Noise(any_python, folder) as noise:
        noisy = run_script(SPAWNED, timeout_s=100)
    assert noisy.ok().stdout == quiet.stdout
    assert noise.addresses and noise.addresses <= LOOPBACK
    assert all(read == [] for _, _, _, read in noise.found)


TAKEN = """
import os, tempfile
from pathlib import Path
from torchbus.errors import LaunchError
from torchbus_launch import secret

tempfile.tempdir, os.environ["XDG_CONFIG_HOME"] = str(Path("tmp").resolve()), "/proc/nowhere"
try:
    print(len(secret.derived(1, 2, "job")))
except LaunchError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "take",
    [
        "os.mkdir(place, 0o777)",
        "os.symlink(mine, place)",
        "os.symlink('/', place)",
        "open(place, 'w').close()",
        "os.mkfifo(place, 0o666)",
        "os.mkdir(place); open(place + '/key', 'w').write('k' * 32)",
        "os.mkdir(place); os.symlink('/etc/passwd', place + '/key')",
        "os.mkdir(place); os.mkfifo(place + '/key', 0o666)",
    ],
)
def test_a_name_in_the_temporary_folder_that_is_taken(
    any_python: str, folder: Path, take: str
) -> None:
    """The secret is made elsewhere or not at all, and nothing of the stranger's is believed."""
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    place, mine = (str(folder / "tmp" / name) for name in ("torchbus-0", "mine"))
    code = f"import os; place, mine = {place!r}, {mine!r}; os.mkdir(mine, 0o777); {take}"
    with _as(STRANGERS[0], [any_python, "-c", code]) as stranger:
        assert stranger.wait() == 0
    found = fork_script(TAKEN, cwd=folder, timeout_s=20).ok().stdout
    if "can be stored neither in" not in found and "is not secret" not in found:
        made = os.lstat(place)  # root may move its own folder over an empty one
        assert stat.S_ISDIR(made.st_mode) and made.st_uid == 0 and not made.st_mode & 0o077
    assert not os.listdir(mine)


def test_no_module_of_the_working_directory_runs(tmp_path: Path) -> None:
    """Anybody may have put it there."""
    for name in ("pickle", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('planted')")
    command = bootstrap.command("import json, pickle")
    assert subprocess.run(command, cwd=tmp_path).returncode == 0
    plain = [sys.executable, "-c", "import pickle"]
    assert subprocess.run(plain, cwd=tmp_path, capture_output=True).returncode == 1
    alone = re.compile(r'sys\.executable,\s*"-[cm]"')
    found = [
        path.name
        for root in ("core", "plugins", "contrib")
        for path in (ROOT / root).rglob("src/**/*.py")
        if alone.search(path.read_text("utf-8"))
    ]
    assert sorted(found) == ["bootstrap.py", "forking.py"]  # the second runs tests
