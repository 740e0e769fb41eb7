"""What it takes to the first batch of a very large data set: seconds and memory, on four ranks of
one machine.

    python benchmarks/data_scale.py [--samples 1000000 100000000 1000000000] [--ranks 4] [--most-gb
    10] [--json FILE]

Each line is a separate process, whose data set holds nothing but its length. From
``iter(loader)`` to the first batch:

- session: a DataLoader in ``with session(strategy="ddp", devices=4)``. ``resumed``: at the middle
  of the pass, as a checkpoint goes there.
- RandomSampler alone: the same loader in one process without torchbus.
- DistributedSampler: the same in one process of four that torchrun would start; the memory of four
  is four times that.

"seconds" and "CPU s" are those of the slowest rank; on a busy machine CPU time says more. "GB":
what the ranks have taken together since the start of the pass: the growth of their proportional set
sizes, and each file in memory that they share, once. "peak": the largest resident set of one rank,
with what the process had before. A line that would take more than ``--most-gb`` is not run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
)
from torchbus import session

BATCH = 32
CELLS = {
    "session, sequential": 0,
    "session, shuffled": 8,
    "session, subset": 8,
    "session, with replacement": 1,
    "session, sequential, resumed": 0,
    "session, shuffled, resumed": 8,
    "session, subset, resumed": 8,
    "RandomSampler alone": 48,
    "DistributedSampler": 50,
}
"""Bytes for each sample at the peak: an int64, and for lists of Python's numbers 40 more."""


class Numbers(Dataset[Tensor]):
    """Its length, and nothing else."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(index)


def first_batch(loader: DataLoader[Tensor], skipped: int) -> dict[str, Any]:
    before, begun, cpu = proportional_gb(), time.perf_counter(), time.process_time()
    batches = iter(loader)
    if skipped:
        batches.skip(skipped)  # type: ignore[attr-defined]
    next(batches)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {
        "seconds": seconds,
        "CPU s": cpu,
        "GB": proportional_gb() - before,
        "peak": peak,
        "shared": shared_gb(),
    }


def shared_gb() -> dict[int, float]:
    """By inode: files in memory that this process has open, mapped or not."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:torchbus" in str(link.readlink()):
                found[link.stat().st_ino] = link.stat().st_blocks * 512 / 1e9
    return found


def proportional_gb() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e9


def loader_of(name: str, samples: int, ranks: int) -> DataLoader[Tensor]:
    data, sampler = Numbers(samples), None
    if "subset" in name:
        sampler = SubsetRandomSampler(range(samples))
    elif name == "DistributedSampler":
        sampler = DistributedSampler(data, ranks, 0)
    elif "sequential" not in name:
        sampler = RandomSampler(data, replacement="replacement" in name)
    return DataLoader(data, BATCH, sampler=sampler)


def cell(name: str, samples: int, ranks: int) -> dict[str, float]:
    """One line, in this process and the ranks that it starts."""
    torch.set_num_threads(1)
    if not name.startswith("session"):
        return first_batch(loader_of(name, samples, ranks), 0)
    with session(strategy="ddp", devices=ranks, accelerator="cpu", launch="fork") as s:
        loader = loader_of(name, samples, ranks)
        found = s.all_gather_object(
            first_batch(loader, len(loader) // 2 if "resumed" in name else 0)
        )
    together = {key: max(one[key] for one in found) for key in ("seconds", "CPU s", "peak")}
    shared = {inode: size for one in found for inode, size in one["shared"].items()}
    return together | {"GB": sum(one["GB"] for one in found) + sum(shared.values())}


def run(name: str, samples: int, ranks: int) -> dict[str, float]:
    command = [
        sys.executable,
        __file__,
        "--cell",
        name,
        "--samples",
        str(samples),
        "--ranks",
        str(ranks),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, nargs="+", default=[10**6, 10**8, 10**9])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--most-gb", type=float, default=10)
    parser.add_argument("--only", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        return print(json.dumps(cell(args.cell, args.samples[0], args.ranks)))
    found: list[dict[str, Any]] = []
    print(f"{'samples':>13}  {'':32}{'seconds':>9}{'CPU s':>9}{'GB':>8}{'peak':>8}")
    for samples in args.samples:
        for name in args.only:
            if CELLS[name] * samples / 1e9 > args.most_gb:
                print(
                    f"{samples:13,}  {name:32}not run: takes {CELLS[name] * samples / 1e9:.0f} GB"
                )
                continue
            one = run(name, samples, args.ranks)
            found.append({"samples": samples, "name": name, **one})
            print(
                f"{samples:13,}  {name:32}{one['seconds']:9.3f}{one['CPU s']:9.3f}"
                f"{one['GB']:8.2f}{one['peak']:8.2f}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
