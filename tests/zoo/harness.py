"""Runs the loops of the zoo, plain and under a session. Linux only: processes are forked."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

from loop import Loop

from torchbus_verify.record.writing import RankRecord

RUNNER = Path(__file__).parent / "runner.py"
TIME_LIMIT = 240.0  # on a busy machine
ONE_AT_A_TIME = threading.Lock()
"""``start`` looks after the processes of other threads, too; of two threads that read the same exit
status one gets 255.
"""
NOT_ENDED = f"\nnot ended after {TIME_LIMIT:g} s"


@dataclass(frozen=True)
class Run:
    status: int
    stdout: list[str]
    stderr: str
    work: Path
    written: tuple[Path, ...]
    """The files of the working folder."""
    ranks: list[RankRecord]
    """Of the ranks that came to the end."""


def run_plain(loop: Loop, folder: Path, *, batches: int = 1, copies: int = 1) -> Run:
    """The script as it is, with the batches of so many ranks; `copies` processes that know nothing
    of each other.
    """
    work, out = make_folders(folder)
    argv = [str(out), str(loop.path), *loop.arguments(batches)]
    # one after another, lest they tear each other's files
    ended = [run_forked(argv, work, out, rank) for rank in range(copies)]
    statuses, stdouts, stderrs = zip(*ended, strict=True)
    return collect(next(filter(None, statuses), 0), "".join(stdouts), "".join(stderrs), work, out)


def run_session(
    loop: Loop, folder: Path, ranks: int, *, launch: str = "script", sim: bool = False
) -> Run:
    """One line around the script: `with session(strategy="ddp", devices=N)`.

    ``sim``: on the simulated accelerator.
    """
    work, out = make_folders(folder)
    options = {"strategy": "ddp", "devices": ranks, "launch": launch, **loop.options}
    flags = ["--session", json.dumps(options), *(["--setup-first"] if loop.setup_first else [])]
    flags += ["--sim"] if sim else []
    argv = [*flags, str(out), str(loop.path), *loop.arguments(1)]
    if launch == "fork":
        return collect(*run_forked(argv, work, out), work, out)
    return run_process([str(RUNNER), *argv], work, out)


def run_forked(
    argv: list[str], work: Path, out: Path, rank: int = 0, *, command: bool = False
) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of the runner in a process that a server forks, which has
    torch imported: a tenth of the time of starting Python.

    ``command``: of `torchbus` with these words.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["runner", "torch._dynamo", "frozen"])
    process = context.Process(target=become_runner, args=(argv, work, out, rank, command))
    with ONE_AT_A_TIME:
        process.start()
    late = not connection.wait([process.sentinel], TIME_LIMIT)
    if late and process.pid is not None:
        os.killpg(process.pid, signal.SIGKILL)
        connection.wait([process.sentinel])
    with ONE_AT_A_TIME:
        process.join()
    return (
        process.exitcode or 0,
        read(out / f"stdout{rank}"),
        read(out / f"stderr{rank}") + NOT_ENDED * late,
    )


def become_runner(argv: list[str], work: Path, out: Path, rank: int, command: bool) -> None:
    os.setsid()
    for stream, name in (sys.stdout, "stdout"), (sys.stderr, "stderr"):
        os.dup2(os.open(out / f"{name}{rank}", os.O_CREAT | os.O_WRONLY), stream.fileno())
    os.chdir(work)
    os.environ |= {"ZOO_RANK": str(rank), "OMP_NUM_THREADS": "1"}
    if command:
        from torchbus_cli.main import main

        sys.argv = ["torchbus", *argv]
        sys.exit(main())
    import runner  # imports torch, which the process that judges does not need

    runner.main(argv)


def run_command(loop: Loop, folder: Path, ranks: int) -> Run:
    """No line at all: `torchbus run --strategy ddp --devices N`, which forks the other ranks."""
    work, out = make_folders(folder)
    flags = ["--strategy", "ddp", "--devices", str(ranks), "--launch", "fork"]
    flags += [text for name, value in loop.options.items() for text in ("-o", f"{name}={value}")]
    words = ["run", *flags, str(RUNNER), str(out), str(loop.path), *loop.arguments(1)]
    return collect(*run_forked(words, work, out, command=True), work, out)


def run_process(command: list[str], work: Path, out: Path) -> Run:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=work,
        env=environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        stderr += NOT_ENDED
    return collect(process.returncode, stdout, stderr, work, out)


def make_folders(folder: Path) -> tuple[Path, Path]:
    work, out = folder / "work", folder / "out"
    work.mkdir(parents=True)
    out.mkdir()
    return work, out


def collect(status: int, stdout: str, stderr: str, work: Path, out: Path) -> Run:
    ranks = [RankRecord(out / f"rank{rank}") for rank in range(len(list(out.glob("rank*"))))]
    files = sorted(path.relative_to(work) for path in work.rglob("*") if path.is_file())
    ended = [record for record in ranks if record.of("end")]
    return Run(status, stdout.splitlines(), stderr, work, tuple(files), ended)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
