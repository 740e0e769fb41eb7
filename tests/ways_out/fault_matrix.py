"""Every fault in every phase, on each rank, under each launch and strategy::

    python make.py faults                     # all cells: hours
    python make.py faults --first 107         # the first ones: each pair of factors
    python make.py faults stuck torchrun      # those with these words
    python make.py faults --first 107 --write # and benchmarks/results/faults.md

A cell is a job of two ranks in which one rank has one fault (``scripts/faulty.py``). Five things
are judged: the seconds from the fault to the end of the last process, the exit status, whether what
is shown first names the rank and the cause, what is left, and what is lost.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from torchbus_testing.forking import fork_script
from torchbus_testing.processes import stretched
from torchbus_testing.scripts import Result, run

sys.path.append(str(Path(__file__).parents[1]))  # ``make.py faults`` runs this file
from pairs import mixed, with_new_pairs

SCRIPT = Path(__file__).parent / "scripts" / "faulty.py"
PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "faults.md"
SIGNALS = ["SIGKILL", "SIGTERM"]
ENDS = ["raise", "exit 0", "exit 3", "_exit 3", *SIGNALS, "stuck"]
IN_THE_LOOP = ["first batch", "middle", "last step"]
PHASES = [
    "before the first step",
    *IN_THE_LOOP,
    "worker",
    "evaluation",
    "save",
    "after the loop",
    "finally",
]
FAULTS = [
    *itertools.product(ENDS, PHASES),
    *itertools.product(["swallowed"], IN_THE_LOOP),
    *itertools.product(["backward"], [*IN_THE_LOOP, "after the loop"]),
]
LAUNCHES = ["fork", "script", "torchbus run", "torchrun"]
STRATEGIES = ["ddp", "fsdp", "ddp_sharded", "pipeline"]
TIMEOUT_S = 8
TORCHS_OWN = ("torchinductor_", "pymp-")
OF_A_LOADER = "tmp"
"""An empty file by which torch's loader tries whether it may open one, as its worker has ended: it
raises where it is then.
"""
WITHIN_S = 30.0  # the table has what it was
HANG_S = 7  # a report of a hang is no cause, unless a rank is stuck
OPTIONS = {
    "accelerator": "cpu",
    "timeout_s": TIMEOUT_S,
    "hang_timeout": HANG_S,
    "freeze_timeout": 6,
}


@dataclass(frozen=True)
class Cell:
    fault: str
    phase: str
    rank: int
    launch: str
    strategy: str

    def __str__(self) -> str:
        return f"{self.fault} | {self.phase} | rank {self.rank} | {self.launch} | {self.strategy}"

    @property
    def kills_the_rank(self) -> bool:
        """Whether the rank is gone without a chance to say or do anything."""
        return self.fault in ("_exit 3", "SIGKILL") and self.phase != "worker"

    @property
    def within_s(self) -> float:
        """A rank that is stuck is given up after ``timeout_s``."""
        return stretched(WITHIN_S) + (2 * TIMEOUT_S if self.fault == "stuck" else 0)

    def statuses(self) -> set[int]:
        """The exit statuses that what the user started may have."""
        if self.fault == "exit 0" and self.phase in ("evaluation", "save"):
            return {0, 1}  # it depends on what the others still need it for
        if self.fault == "exit 0" and self.phase in ("after the loop", "finally"):
            return {0}
        if self.launch == "torchrun" or self.rank == 1 or self.phase == "worker":
            return {1}
        return {
            {"exit 3": 3, "_exit 3": 3, "SIGKILL": -signal.SIGKILL, "SIGTERM": 143}.get(
                self.fault, 1
            )
        }

    def cause(self) -> str:
        """A pattern of what is shown first; "" if nothing need be shown.

        Torch's loader says first how it noticed that a worker has ended.
        """
        rank = f"rank {self.rank}"
        match self.fault:
            case "stuck" | "backward":
                return rank
            case "raise":
                return f"the fault of {rank}"
            case "swallowed":
                # which ones differ, and not why
                return (
                    f"the fault of {rank}|RanksDiverged|ranks are at different places|{rank} ended"
                )
            case _ if self.phase == "worker":
                return r"dataloader\.py|DataLoader worker"
            case "exit 0":
                return rank if self.statuses() == {1} else ""
        if self.rank == 0 and self.launch != "torchrun":
            return ""  # the user sees the status, as of any process
        return rf"{rank} failed first: |\[{rank}\] SystemExit: 3"


MESSAGE = re.compile(r"(\[rank \d\] )?(torchbus: |([\w.]+\.)?\w*(Error|Failed|Diverged|Exit): )")


def first_message(stderr: str) -> str:
    """Its first line that says what has happened, with the indented lines after it."""
    lines = iter(stderr.splitlines())
    first = next((line for line in lines if MESSAGE.match(line)), "")
    return "\n".join([first, *itertools.takewhile(lambda line: line.startswith("  "), lines)])


@dataclass(frozen=True)
class Judgement:
    cell: Cell
    seconds: float
    wrong: list[str]
    stderr: str


def judge(cell: Cell) -> Judgement:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        before = shared_memory()
        try:
            result = start(cell, folder)
        except TimeoutError as error:
            return Judgement(cell, float("inf"), ["does not end"], str(error))
        if not (folder / "at").exists():
            return Judgement(cell, 0.0, ["the fault did not come"], result.stderr)
        seconds = time.time() - (folder / "at").stat().st_mtime
        found = temporary(folder / "tmp", cell.phase == "worker")
        left = [*result.orphans, *found, *(shared_memory() - before)]
        wrong = [f"{seconds:.0f} s"] if seconds > cell.within_s else []
        wrong += [f"status {result.status}"] if result.status not in cell.statuses() else []
        wrong += [f"left: {left}"] if left else []
        message = result.stderr if cell.phase == "worker" else first_message(result.stderr)
        wrong += [f"shown first: {message!r}"] if not re.search(cell.cause(), message) else []
        return Judgement(cell, seconds, [*wrong, *lost(cell, folder)], result.stderr)


def start(cell: Cell, folder: Path) -> Result:
    words = [str(SCRIPT), str(folder), cell.fault, cell.phase, str(cell.rank)]
    options = {**OPTIONS, "strategy": cell.strategy}
    own = {**options, "devices": 2, "launch": cell.launch}
    match cell.launch:
        case "fork":
            return fork_script(SCRIPT, *words[1:], json.dumps(own))
        case "script":
            return run([sys.executable, *words, json.dumps(own)])
        case "torchrun":
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            return run([sys.executable, *torchrun, *words, json.dumps(options)])
    given = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return run([sys.executable, "-m", "torchbus", "run", "--devices", "2", *given, *words])


def temporary(folder: Path, of_a_worker: bool) -> list[str]:
    """What is left in TMPDIR, but for torch's own: a cache, and the folder of a killed worker."""
    own = (*TORCHS_OWN, OF_A_LOADER) if of_a_worker else TORCHS_OWN
    return [path.name for path in folder.iterdir() if not path.name.startswith(own)]


def shared_memory() -> set[str]:
    """What processes that have ended have left in /dev/shm."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    owners = ((name, re.match(r"torch_(\d+)_", name)) for name in names)
    return {name for name, owner in owners if owner and not Path("/proc", owner[1]).exists()}


def lost(cell: Cell, folder: Path) -> Iterator[str]:
    """What was written, and is not there; also a ``finally`` that did not run."""
    for rank in (0, 1):
        steps, log = (folder / f"{name}{rank}" for name in ("steps", "log"))
        done = steps.stat().st_size if steps.exists() else 0
        if done and (not log.exists() or log.read_text().count("\n") < done):
            yield f"lines of rank {rank} are lost"
        # torch's loader raises wherever the rank is when it hears that a worker has ended
        can_not = cell.kills_the_rank or cell.phase in ("finally", "worker")
        excused = cell.rank == rank and can_not
        if not excused and not (folder / f"finally{rank}").exists():
            yield f"finally of rank {rank} did not run"
    if cell.phase != PHASES[0]:
        try:
            torch.load(folder / "model.pt", weights_only=True)
        except Exception as error:
            yield f"model.pt: {error!r}"


def cells() -> list[Cell]:
    """All of them, mixed. The first ones have each pair of factors, so have those after them."""
    every = itertools.product(FAULTS, (1, 0), LAUNCHES, STRATEGIES)
    left = mixed((*fault, rank, launch, strategy) for fault, rank, launch, strategy in every)
    found: list[Cell] = []
    while left:
        first = dict.fromkeys(with_new_pairs(left))
        found += [Cell(*row) for row in first]
        left = [row for row in left if row not in first]
    return found


def table(judged: list[Judgement]) -> Iterator[str]:
    yield "| fault | phase | cells | passed | seconds, mean | slowest |"
    yield "|---|---|--:|--:|--:|--:|"
    for fault, phase in FAULTS:
        mine = [one for one in judged if (one.cell.fault, one.cell.phase) == (fault, phase)]
        seconds = [one.seconds for one in mine]
        if mine:
            good = sum(not one.wrong for one in mine)
            mean, slowest = sum(seconds) / len(mine), max(seconds)
            yield f"| {fault} | {phase} | {len(mine)} | {good} | {mean:.1f} | {slowest:.1f} |"


def write(lines: Iterable[str]) -> None:
    page = PAGE.read_text("utf-8")
    start, end = "<!-- faults -->\n", "<!-- end of faults -->"
    before, _, rest = page.partition(start)
    PAGE.write_text(
        before + start + "\n".join(lines) + "\n" + end + rest.partition(end)[2], "utf-8"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make.py faults")
    parser.add_argument("words", nargs="*", help="only cells in whose names these are")
    parser.add_argument("--first", type=int, metavar="N", help="only the first N of them")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/faults.md")
    given = parser.parse_args()
    chosen = [one for one in cells() if all(word in str(one) for word in given.words)]
    judged = []
    for cell in chosen[: given.first]:
        judged.append(found := judge(cell))
        print(f"{found.seconds:5.1f} s  {cell}  {'; '.join(found.wrong) or 'ok'}", flush=True)
        if found.wrong:
            print(found.stderr, flush=True)
    lines = [*table(judged), "", f"{len(judged)} of {len(cells())} cells."]
    print("\n".join(lines))
    if given.write:
        write(lines)
    return int(any(one.wrong for one in judged))


if __name__ == "__main__":
    sys.exit(main())
