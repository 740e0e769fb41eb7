"""One real rank in a world of many that are not there; benchmarks/scale.py runs it for each size.

    python benchmarks/scale_rank.py WORLD_SIZE PORT

It is rank 0, which has the most to do, and joins as a launcher's ranks do. Its session, with ddp,
the sampler, the log and the checkpoint, is the real one, and so is its guard. It writes no
checkpoint, for which the others would have to send their parts. Not there are the other ranks: the
process group answers as if all of them did what this one does, and benchmarks/scale.py, the only
client of this rank's store, says there what they would say.

It prints one line of JSON: CPU microseconds of the main thread in each part of a step, of the
guard's threads in a second, the requests that this rank has made of the store, the bytes that it
gave to the process group, its memory, and the CPU seconds until its first step.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from alike import Alike
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchbus import session

import torchbus_checkpoint.plugin
import torchbus_log.gatherer
import torchbus_log.plugin
import torchbus_sampler.divider
import torchbus_sampler.order
import torchbus_sampler.orders.sliced
from torchbus_checkpoint.automatic import AutomaticSaves
from torchbus_strategy.backward import gradients, header, loss_counts
from torchbus_strategy.checks import divergence, replicas

SAMPLES, BATCH, PER_NODE = 2**25, 32, 8
WARM, STEPS, RESTS_S = 8, 50, 5.0
REQUESTS = ("set", "get", "check", "add", "compare_set", "multi_get", "delete_key")
OF_GUARD = ("torchbus-guard", "torchbus-looking", "torchbus-news")


class Parts:
    """CPU time of the main thread in each part, without what other parts take inside."""

    def __init__(self) -> None:
        self.spent_ns: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = 0
        self._main = threading.main_thread().ident

    def time(self, owner: Any, name: str, part: str) -> None:
        function = getattr(owner, name)

        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() != self._main:
                return function(*arguments, **named)
            self._turn()
            self._open.append(part)
            try:
                return function(*arguments, **named)
            finally:
                self._turn()
                self._open.pop()

        setattr(owner, name, timed)

    def time_listeners(self, part: str, *modules: Any) -> None:
        """All methods of these modules' classes that listen to events."""
        for module in modules:
            for kind in [thing for thing in vars(module).values() if isinstance(thing, type)]:
                names = [name for name, one in vars(kind).items() if hasattr(one, "torchbus_impl")]
                for name in names if kind.__module__ == module.__name__ else []:
                    if not vars(kind)[name].torchbus_impl["optionalhook"]:
                        self.time(kind, name, part)

    def _turn(self) -> None:
        now = time.thread_time_ns()
        if self._open:
            self.spent_ns[self._open[-1]] += now - self._since
        self._since = now


def timed_parts() -> Parts:
    parts = Parts()
    parts.time_listeners("sampler", torchbus_sampler.divider)
    parts.time(torchbus_sampler.orders.sliced.Slices, "__next__", "sampler")
    parts.time_listeners("log", torchbus_log.plugin, torchbus_log.gatherer)
    parts.time_listeners("checkpoint", torchbus_checkpoint.plugin)
    parts.time(torchbus_checkpoint.plugin.Checkpoint, "_boundary", "checkpoint")
    AutomaticSaves.at_end = lambda saves: None  # type: ignore[method-assign]  # no files to wait for
    parts.time_listeners("header", replicas)
    for owner, name in (
        (gradients.GradientSync, "_slots"),
        (gradients.GradientSync, "_give_loss"),
        (gradients.GradientSync, "_after_sync"),
        (header.Header, "begin"),
        (header.Header, "fill"),
        (divergence.HeaderCheck, "take"),
        (loss_counts.LossCounts, "of"),
        (loss_counts.LossCounts, "weigh_terms"),
        (loss_counts.LossCounts, "scale_gradients"),
    ):
        parts.time(owner, name, "header")
    return parts


def counted(requests: Counter[str]) -> None:
    """Count what Python asks of a store."""
    for name in REQUESTS:
        function = getattr(dist.TCPStore, name)

        def call(store: Any, *arguments: Any, function: Any = function, name: str = name) -> Any:
            requests[name] += 1
            return function(store, *arguments)

        setattr(dist.TCPStore, name, call)


class Numbers(Dataset[Tensor]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index / SAMPLES, 1.0])


def guards_ns() -> int:
    """CPU time that the guard's threads have taken."""
    ids = [one.native_id for one in threading.enumerate() if one.name in OF_GUARD]
    return sum(int(Path(f"/proc/self/task/{one}/schedstat").read_text().split()[0]) for one in ids)


def own_mb() -> float:
    """Memory of this process, without files that ranks share."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("Anonymous:")).split()[1]) / 1e3


def steps(loader: DataLoader[Tensor], step: Callable[[Tensor], None], count: int) -> Iterator[int]:
    """Yields after the first step, after the warm-up, and at the end."""
    for number, batch in zip(range(count), loader, strict=False):
        step(batch)
        if number in (0, WARM, count - 1):
            yield number


def simulated(world_size: int, port: int) -> dict[str, Any]:
    requests: Counter[str] = Counter()
    counted(requests)
    parts = timed_parts()
    groups: list[Alike] = []

    def make(store: Any, rank: int, size: int, timeout: Any) -> Alike:
        groups.append(Alike(rank, size))
        return groups[-1]

    dist.Backend.register_backend("alike", make, devices=["cpu"])
    os.environ |= {
        "RANK": "0", "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": str(PER_NODE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "TORCHBUS_BACKEND": "alike",
    }  # fmt: skip
    torch.set_num_threads(1)
    gc.collect()
    before_mb, begun = own_mb(), time.process_time()
    found: dict[str, Any] = {"ranks": world_size}
    with (
        tempfile.TemporaryDirectory() as folder,
        session(
            strategy="ddp", accelerator="cpu", logger="local", log_dir=f"{folder}/logs",
            checkpoint=f"{folder}/checkpoints", every_n_steps=10**9,
        ) as s,
    ):  # fmt: skip
        model = nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

        def step(batch: Tensor) -> None:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            s.log("loss", loss.item(), sync_dist=True)

        walk = steps(DataLoader(Numbers(), BATCH, shuffle=True), step, WARM + 1 + STEPS)
        next(walk)
        drawing_s = parts.spent_ns["sampler"] / 1e9  # the order, as long as the data set
        found["start_cpu_s"] = time.process_time() - begun - drawing_s
        found["start_requests"] = sum(requests.values())
        next(walk)
        parts.spent_ns.clear()
        sent, calls = groups[0].sent, groups[0].calls
        next(walk)
        found |= {f"{part}_us": spent / STEPS / 1e3 for part, spent in parts.spent_ns.items()}
        found["bytes"] = (groups[0].sent - sent) / STEPS
        found["collectives"] = (groups[0].calls - calls) / STEPS
        found["gradient_bytes"] = sum(one.nbytes for one in model.parameters())
        found["memory_mb"] = own_mb() - before_mb
        begun_ns = guards_ns()
        time.sleep(RESTS_S)
        found["guard_us_per_s"] = (guards_ns() - begun_ns) / RESTS_S / 1e3
        requests.clear()
        del walk
    found["end_requests"] = sum(requests.values())
    return found


if __name__ == "__main__":
    print(json.dumps(simulated(int(sys.argv[1]), int(sys.argv[2]))))
