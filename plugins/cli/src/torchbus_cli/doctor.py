"""``torchbus doctor``: checks packages, environment, machine and GPUs, and trains on two ranks."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torchbus
from torch.nn import Linear, Sequential, Tanh
from torch.nn.functional import mse_loss
from torch.nn.utils import parameters_to_vector
from torchbus import bootstrap, session
from torchbus.bus import discovery

from torchbus_cli.parser import Parser, table
from torchbus_cli.plugins import installed_plugins, misfits
from torchbus_device import accelerators
from torchbus_device.devices import DevicePlan
from torchbus_launch import inherited
from torchbus_launch.launched_rank import LaunchedRank, find
from torchbus_launch.request import LaunchRequest
from torchbus_redaction.redactor import Redactor, redacted


@dataclass(frozen=True)
class Finding:
    """One result of ``torchbus doctor``.

    ``problems`` say what is wrong, and what to do. ``hints`` say what may go wrong later.
    """

    name: str
    facts: Mapping[str, object]
    problems: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Format the facts as one paragraph, then each problem and hint with a mark."""
        facts = ", ".join(
            f"{name} {'none' if value is None else value}" for name, value in self.facts.items()
        )
        rows = [(self.name, facts or "none")]
        rows += [("  WRONG", text) for text in self.problems]
        rows += [("  hint", text) for text in self.hints]
        return table([(label.ljust(12), text) for label, text in rows])


def packages_look() -> list[Finding]:
    """Check that each plugin can be imported and fits this version of torchbus."""
    found = installed_plugins()
    facts = {plugin.distribution: plugin.version for plugin in found}
    broken = [
        f"{plugin.error}. Install it again: pip install --force-reinstall --no-deps"
        f" {plugin.distribution}"
        for plugin in found
        if plugin.error is not None
    ]
    return [Finding("plugins", facts, [*misfits(), *broken])]


LAUNCHERS = {
    "torchrun": "RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|TORCHELASTIC_RUN_ID",
    "horovodrun": "HOROVOD_((LOCAL_)?(RANK|SIZE)|CROSS_RANK|GLOO_RENDEZVOUS_(ADDR|PORT))",
    "SLURM": (
        "SLURM_(JOB_ID|NTASKS|PROCID|LOCALID|NODEID|STEP_ID|STEP_NODELIST|NODELIST|TASKS_PER_NODE)"
    ),
    "MPI": r"(OMPI_COMM_WORLD_|PMI_|MPI_LOCAL|MV2_COMM_WORLD_)\w+",
}
RENDEZVOUS_POINT = "MASTER_ADDR|MASTER_PORT|NODE_RANK"
SETTINGS = (
    r"(TORCHBUS|GLOO|NCCL|TORCH_NCCL|TORCH_DISTRIBUTED)_\w+|CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS"
)


def environment_look() -> list[Finding]:
    """Report which variables are set, and whether they contradict each other."""
    seen = "|".join([*LAUNCHERS.values(), RENDEZVOUS_POINT])
    launcher = Finding(
        "launcher", shown(matching(seen)), [*_contradictions(), *_rendezvous_point()]
    )
    stale = (
        ["TORCHBUS_LAUNCH was set, which only a rank that a session started may have: unset it"]
        if inherited.is_rank()
        else []
    )
    return [launcher, Finding("settings", shown(matching(SETTINGS)), [*stale, *_interface()])]


def matching(pattern: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables whose names match."""
    return {name: environ[name] for name in sorted(environ) if re.fullmatch(pattern, name)}


def shown(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables that are fit to print, without secrets and passwords inside addresses."""
    return {name: str(value) or "(empty)" for name, value in Redactor().plain(variables).items()}


GOOD_ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def _contradictions() -> list[str]:
    """Return a problem for launchers whose variables contradict each other.

    Under torchrun there is none, because variables of SLURM or MPI describe its own launch.
    """
    places: dict[str, LaunchedRank] = {}
    problems: list[str] = []
    for launcher, names in LAUNCHERS.items():
        try:
            given = matching(f"{names}|{RENDEZVOUS_POINT}")
            # _rendezvous_point() checks the address
            given |= {name: value for name, value in GOOD_ADDRESS.items() if name in given}
            place = find(LaunchRequest(DevicePlan("cpu", 1)), given)
            places |= {launcher: place} if place is not None else {}
        except ValueError as error:
            problems.append(str(error))
    if (
        "TORCHELASTIC_RUN_ID" not in os.environ
        and len({(place.rank, place.world_size) for place in places.values()}) > 1
    ):
        reported = "; ".join(
            f"{place.launched_by} says rank {place.rank} of {place.world_size}"
            for place in places.values()
        )
        problems.append(
            f"launchers contradict each other: {reported}. torchbus follows the first: unset the"
            " variables of the other"
        )
    return problems


def _rendezvous_point() -> list[str]:
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = os.environ.get("MASTER_PORT", "29500")
    problems = []
    if not (port.isdigit() and int(port) < 2**16):
        problems.append(
            f"MASTER_PORT={port!r} is not a port: set it to a number below 65536, the same on all"
            " nodes"
        )
    try:
        socket.getaddrinfo(address, None)
    except OSError as error:
        problems.append(
            f"MASTER_ADDR={redacted(address)!r} is not known here ({error}): set it to the address"
            " of the first node"
        )
    return problems


def _interface() -> list[str]:
    asked = os.environ.get("GLOO_SOCKET_IFNAME", "")
    there = [name for _, name in socket.if_nameindex()]
    missing = [name for name in asked.split(",") if name and name not in there]
    return [
        f"GLOO_SOCKET_IFNAME={asked}: there is no interface {name} here, only {', '.join(there)}"
        for name in missing
    ]


SHARED_MEMORY = "/dev/shm"
SMALL_MIB = 256


def machine_look() -> list[Finding]:
    """Describe the machine without its GPUs."""
    python = {"version": platform.python_version(), "executable": sys.executable}
    return [
        Finding("python", python),
        Finding("platform", {"system": platform.platform()}),
        _processors(),
        _shared_memory(),
    ]


def _processors() -> Finding:
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    given = os.environ.get("OMP_NUM_THREADS", str(usable)).split(",")[0].strip()
    threads = torch.get_num_threads()
    facts = {"present": os.cpu_count(), "usable": usable, "threads of torch": threads}
    if not given.isdigit() or not int(given):
        what = f"OMP_NUM_THREADS={given!r} is not a number of threads: unset it, or set it to"
        return Finding("processors", facts, [f"{what} {usable}"])
    hint = f"OMP_NUM_THREADS={given} is more than the usable processors: set it to at most {usable}"
    return Finding("processors", facts, hints=[hint] if int(given) > usable else [])


def _shared_memory() -> Finding:
    if not os.path.isdir(SHARED_MEMORY):
        return Finding(SHARED_MEMORY, {"size": None})
    disk = os.statvfs(SHARED_MEMORY)
    free_mib, total_mib = (
        blocks * disk.f_frsize // 2**20 for blocks in (disk.f_bavail, disk.f_blocks)
    )
    facts = {"free": f"{free_mib} MiB", "size": f"{total_mib} MiB"}
    if free_mib >= SMALL_MIB:
        return Finding(SHARED_MEMORY, facts)
    hint = (
        f"{SHARED_MEMORY} is small, and DataLoader workers pass batches through it: start the"
        " container with --shm-size=2g or --ipc=host, or use num_workers=0"
    )
    return Finding(SHARED_MEMORY, facts, hints=[hint])


DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl")


def accelerators_look() -> list[Finding]:
    """Report how torch was built, and what it can use."""
    return [
        Finding("torch", {"version": torch.__version__, "CUDA": torch.version.cuda}),
        _gpus(),
        _backends(),
    ]


def _gpus() -> Finding:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kind = accelerators.current() or "cuda"
        module = accelerators.module(kind)
        count = accelerators.count(kind) if module.is_available() else 0
    complaints = [str(warning.message).splitlines()[0] for warning in caught]
    if not count:
        return Finding("gpus", {}, _why_none(complaints))
    facts, problems = {}, []
    for index in range(count):
        try:
            facts[str(index)] = _describe(kind, index)
        except RuntimeError as error:
            facts[str(index)] = "can't be used"
            problems.append(
                f"GPU {index}: {str(error).splitlines()[0]}: see nvidia-smi; leave it out with"
                " CUDA_VISIBLE_DEVICES"
            )
    return Finding("gpus", facts, problems)


def _describe(kind: str, index: int) -> str:
    name = getattr(accelerators.module(kind), "get_device_name", lambda _: kind)(index)
    if not hasattr(accelerators.module(kind), "mem_get_info"):
        return str(name)
    free, total = (size / 2**30 for size in accelerators.memory_info(kind, index))
    return f"{name} with {free:.1f} of {total:.1f} GiB free"


def _why_none(complaints: list[str]) -> list[str]:
    """Return what is wrong if torch sees no GPU.

    That is nothing on a machine without a driver, or if the user hides the GPUs.
    """
    if complaints:
        return [f"torch can't use the GPUs: {complaints[0]}"]
    if not any(map(os.path.exists, DRIVER_FILES)) or os.environ.get(
        "CUDA_VISIBLE_DEVICES", "0"
    ) in ("", "-1"):
        return []
    if torch.version.cuda is None:
        return [
            "this machine has an NVIDIA driver, but torch was built without CUDA: install a CUDA"
            " build, see pytorch.org"
        ]
    return [
        "this machine has an NVIDIA driver, but torch sees no GPU: see nvidia-smi and"
        " CUDA_VISIBLE_DEVICES; in a container, --gpus all"
    ]


def _backends() -> Finding:
    if not dist.is_available():
        return Finding(
            "backends", {}, ["torch was built without torch.distributed: install an official build"]
        )
    built = {
        name: getattr(dist, f"is_{name}_available", bool)()
        for name in ("gloo", "nccl", "mpi", "ucc", "xccl")
    }
    facts = {"built in": " ".join(name for name, there in built.items() if there) or None}
    problems = (
        []
        if built["gloo"]
        else ["torch was built without gloo, which ranks on CPU need: install an official build"]
    )
    chosen = os.environ.get("TORCHBUS_BACKEND")
    if chosen is not None and not dist.is_backend_available(chosen):
        problems.append(
            f"TORCHBUS_BACKEND={chosen!r} is not a backend of torch.distributed: use one of"
            f" {facts['built in']}, or unset it"
        )
    return Finding("backends", facts, problems)


TIMEOUT_S = 5.0
WORD = b"torchbus"


def loopback_look() -> list[Finding]:
    """Send a word over 127.0.0.1, as the ranks of one machine do."""
    try:
        works = _send() == WORD
        problem = "what is sent to 127.0.0.1 does not arrive"
    except OSError as error:
        works, problem = False, f"127.0.0.1 can't be reached ({error})"
    remedy = "bring the interface up (ip link set lo up), and let the firewall pass it"
    problems = [] if works else [f"{problem}: {remedy}"]
    return [Finding("loopback", {"TCP": "works" if works else "fails"}, problems)]


def _send() -> bytes:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), TIMEOUT_S) as client,
    ):
        server.settimeout(TIMEOUT_S)
        peer = server.accept()[0]
        with peer:
            peer.settimeout(TIMEOUT_S)
            client.sendall(WORD)
            return peer.recv(len(WORD))


STEPS = 20
BATCH_SIZE = 8


def train(rank: int = 0, world_size: int = 1) -> tuple[torch.Tensor, float]:
    """Train on this rank's share of every batch; return the parameters and the seconds it took."""
    torch.manual_seed(0)
    model = Sequential(Linear(4, 16), Tanh(), Linear(16, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    began = time.perf_counter()
    for _ in range(STEPS):
        batch = torch.randn(BATCH_SIZE, 4, generator=generator, dtype=torch.float64)
        x = batch.chunk(world_size)[rank]
        optimizer.zero_grad()
        mse_loss(model(x), x.sin().sum(1, keepdim=True)).backward()
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach(), time.perf_counter() - began


def train_on_two_ranks() -> None:
    with session(strategy="ddp", devices=2, accelerator="cpu", backend="gloo", timeout_s=60.0) as s:
        together, train_s = train(s.rank, s.world_size)
    alone, _ = train()
    difference = ((together - alone).abs().max() / alone.abs().max()).item()
    print(json.dumps({"difference": difference, "steps": STEPS, "train_s": train_s}))


NAME = "self-test"
TOLERANCE = 1e-9
COMMAND = bootstrap.command(
    "from torchbus_cli.doctor import train_on_two_ranks; train_on_two_ranks()"
)


def run(timeout_s: float) -> Finding:
    """Train on two gloo ranks on CPU, and compare the parameters with those of one process."""
    if "ddp" not in discovery.installed("strategy"):
        hint = "training on several devices needs a plugin: pip install torchbus-ddp"
        return Finding(NAME, {"result": "not run"}, hints=[hint])
    began = time.perf_counter()
    with subprocess.Popen(
        COMMAND,
        env=_environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return _failed(f"two ranks did not train within {timeout_s:g} s", _end(process))
    if process.returncode:
        return _failed(f"two ranks could not train (exit status {process.returncode})", errors)
    try:
        reported = json.loads(output)
    except ValueError:
        return _failed("two ranks printed something else than their result", output)
    return _judged(reported, time.perf_counter() - began)


def _judged(reported: dict[str, Any], wall_s: float) -> Finding:
    same = reported["difference"] <= TOLERANCE
    facts = {
        "result": "passed" if same else "failed",
        "steps": reported["steps"],
        "difference to one process": f"{reported['difference']:.1g}",
        "ms/step": f"{reported['train_s'] / reported['steps'] * 1000:.2f}",
        "seconds in all": f"{wall_s:.1f}",
    }
    wrong = (
        "two ranks learn different parameters than one process: please report it with this output"
    )
    return Finding(NAME, facts, [] if same else [wrong])


def _failed(what: str, errors: str) -> Finding:
    see_all = f"See the lines above; {shlex.join(COMMAND)} shows all of it"
    problem = f"{what}: {_last_error(errors) or 'no output'}. {see_all}"
    return Finding(NAME, {"result": "failed"}, [problem])


def _last_error(errors: str) -> str:
    """Return the message under the last traceback."""
    lines = errors.rstrip().splitlines()
    indented = [index for index, line in enumerate(lines) if line.startswith("  ")]
    return " ".join(lines[indented[-1] + 1 :] if indented else lines[-1:])


def _end(process: subprocess.Popen[str]) -> str:
    """End rank 0, which then ends the other rank; return what they wrote to stderr."""
    process.terminate()
    try:
        return process.communicate(timeout=10)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[1]


def _environ() -> dict[str, str]:
    """Return the environment without a launcher's variables: the two ranks are a separate job."""
    launcher = matching("|".join([*LAUNCHERS.values(), RENDEZVOUS_POINT, r"TORCHBUS_\w+"]))
    return {name: value for name, value in os.environ.items() if name not in launcher}


DESCRIPTION = """Say what this machine has for training, what is wrong with it, and what to do.

The command checks Python, processors, torch, GPUs, communication, launcher variables and plugins.
Then it trains a tiny model on two ranks and compares it with one process. The exit status is 1 if
something is wrong, otherwise 0. It hides the values of variables that look like secrets.
"""
EXAMPLES = """  torchbus doctor
  torchbus doctor --quick                     without the two-rank self-test
  torchbus doctor --json > report.json        to attach to a bug report
  srun -n 4 torchbus doctor --quick           what each rank of a cluster job sees
"""


def main(argv: list[str]) -> int:
    """Say what is wrong with this machine for training, and what to do."""
    parser = Parser("doctor", DESCRIPTION, EXAMPLES)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--quick", action="store_true", help="skip the self-test, which takes some seconds"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds that the self-test may take (default 120)",
    )
    given = parser.parse(argv)
    found = []
    for finding in _look(None if given.quick else given.timeout):
        found.append(finding)
        if not given.json:
            print(finding.text(), flush=True)
    wrong = sum(bool(finding.problems) for finding in found)
    print(_as_json(found) if given.json else f"\n{_summary(wrong)}")
    return 1 if wrong else 0


def _look(self_test_s: float | None) -> Iterator[Finding]:
    yield Finding("torchbus", {"version": torchbus.__version__})
    yield from machine_look()
    yield from accelerators_look()
    yield from environment_look()
    yield from loopback_look()
    yield from packages_look()
    if self_test_s is not None:
        yield run(self_test_s)


def _summary(wrong: int) -> str:
    are = "is" if wrong == 1 else "are"
    return (
        f"{wrong} of these {are} wrong: see the lines marked WRONG" if wrong else "nothing is wrong"
    )


def _as_json(found: list[Finding]) -> str:
    findings = {
        finding.name: {name: value for name, value in asdict(finding).items() if name != "name"}
        for finding in found
    }
    ok = not any(finding.problems for finding in found)
    return json.dumps({"ok": ok, "findings": findings}, indent=2)
