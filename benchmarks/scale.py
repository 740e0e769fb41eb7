"""What ranks ask of their store, at world sizes that this machine does not have.

    python benchmarks/scale.py [--waiting 500] [--ranks 16] [--worlds 8 64 ...] [--json FILE]

Counted: the requests of one rank's guard, which gets these numbers of ranks, over an hour
by a clock that the script turns. The store is torch's TCPStore; the guard's pulse, log entries and
watch for hangs are those of a session.
Simulated: a whole session of rank 0, by scale_rank.py, in a world whose other ranks do as it does,
with the requests of all other guards at its store. This gives the CPU time of each part of a step,
the requests until the first step and at the end, the bytes of a step, and the memory.
Measured: how many requests one such store answers in a second, how long a log entry takes to
reach ``--waiting`` ranks that wait for it, and, in a session of ``--ranks`` real ranks of which one
is killed, the time until the last of them has ended. Computed: the requests of all ranks together,
and the seconds to start: CPU time of rank 0 until its first step, and the requests of all ranks
until then at one store.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from torchbus_launch import listening, secret
from torchbus_launch.broadcast_log import FAILED, BroadcastLog
from torchbus_launch.freeze import Pulse
from torchbus_launch.hang import HangWatch
from torchbus_launch.rank_position import RankPosition
from torchbus_launch.store import SealedStore, StoreBarrier
from torchbus_testing.recorder import CountedStore

WORLD_SIZES = (2, 8, 64, 512, 4096, 10000, 16384)
KEY = "a secret of both scripts"
PER_NODE, GUARD_REQUESTS_PER_S = 8, 0.1
GUARDS = ("ranks", "guard/s", "node/s", "all/s")
COLUMNS = {
    "ranks": "ranks", "sampler us": "sampler_us", "header us": "header_us", "log us": "log_us",
    "save us": "checkpoint_us", "guard us/s": "guard_us_per_s", "start asks": "start_requests",
    "end asks": "end_requests", "bytes": "bytes", "gradients": "gradient_bytes",
    "MB": "memory_mb", "start s": "start_s",
}  # fmt: skip
HOUR_S, LOOK_S = 3600.0, 0.2
KILLED = """
import os, signal, sys, time
import torch
from torchbus import session
with session(strategy="ddp", devices=int(sys.argv[1]), accelerator="cpu", launch="fork") as s:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1000000):
        if step == 20 and s.rank == s.world_size - 1:
            open(sys.argv[2], "w").write(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        model(torch.randn(4, 4)).mean().backward()
        optimizer.step()
"""


class Turned:
    """A clock that only the script advances."""

    now_s = 0.0

    def seconds(self) -> float:
        return self.now_s


def served() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def guard_requests_per_s(world_size: int) -> float:
    """Requests of one guard per second while the job trains."""
    store = CountedStore(served(), b"key")
    for rank in (0, world_size - 1):
        store.set(f"pulse/{rank}", "1")
    rank, clock = world_size - 1, Turned()
    log = BroadcastLog(SealedStore(store._held[0], b"key"))
    log.start()
    local = range(max(0, rank + 1 - PER_NODE), rank)
    pulse = Pulse(store, rank, 0, sorted({0, *local}), clock, 600.0)  # type: ignore[arg-type]
    hang = HangWatch(store, log, rank, world_size, 60.0, lambda: RankPosition(rank, "", "", "", 0))
    store.requests = beats = 0
    while clock.now_s < HOUR_S:
        clock.now_s += LOOK_S
        if pulse.beat():
            beats += 1
            store._bytes.set("pulse/0", store._sealed("pulse/0", str(beats)))
            store.requests -= 1  # of the next rank, not of this one
        hang.look()
    found = store.requests / HOUR_S
    log.append(store, FAILED)
    log.stop()
    return found


def simulated(world_size: int) -> dict[str, Any]:
    """What scale_rank.py finds, while this process says what all other ranks would say."""
    port, over = free_port(), threading.Event()
    command = [sys.executable, str(Path(__file__).with_name("scale_rank.py"))]
    running = subprocess.Popen(
        [*command, str(world_size), str(port)],
        stdout=subprocess.PIPE,
        env=os.environ | {secret.VARIABLE: KEY},
    )
    others = threading.Thread(target=say_all, args=[world_size, port, over])
    others.start()
    told, _ = running.communicate()
    over.set()
    others.join()
    return dict(json.loads(told))


def say_all(world_size: int, port: int, over: threading.Event) -> None:
    """Say what all but rank 0 say, and ask what their guards ask, until it is over."""
    raw = listening.reach("127.0.0.1", port, timedelta(minutes=5), 0)
    key = secret.derived(port, world_size, "", {secret.VARIABLE: KEY})
    store = SealedStore(raw, key, "attempt 0/session 0/")
    if reach_barrier(store, "has the key", world_size):
        store.set(secret.COMPARED, "")
    job = with_the_number(store, world_size).within("job")
    for word in ("loop ended", "ended", "left"):
        reach_barrier(job, word, world_size)
    begun, asked = time.monotonic(), 0
    with contextlib.suppress(RuntimeError):  # the store has gone
        while not over.wait(0.05) and not job.check(["all ended"]):
            due = (time.monotonic() - begun) * world_size * GUARD_REQUESTS_PER_S
            for _ in range(int(due) - asked):
                asked += 1
                job.set(f"pulse/{1 + asked % (world_size - 1)}", str(asked))


def reach_barrier(store: SealedStore, word: str, world_size: int) -> bool:
    """Announce all but rank 0; return whether that completes the barrier."""
    numbers = StoreBarrier(store, word, 0, world_size)._numbers()
    return store.count(word, sum(numbers[1:])) == sum(numbers)


def with_the_number(store: SealedStore, world_size: int) -> SealedStore:
    """The store with the key of this start, for which all but rank 0 ask in ``secret.drawn``."""
    others = range(1, world_size)
    store.set_all({secret._asked(rank): bytes(secret.ASKED_BYTES) for rank in others})
    while (answer := store.read(secret.ANSWER)) is None:
        time.sleep(0.01)
    key = secret._with_number(store.key, answer[: secret.NUMBER_BYTES])
    with_number = SealedStore(store.raw, key, store.prefix)
    with_number.set_all({secret._shown(rank): "" for rank in others})
    return with_number


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def answers_per_s(seconds: float = 2.0, clients: int = 2) -> float:
    """Requests that one store answers in a second, to clients that each wait for the answer."""
    server = served()
    code = (
        "import sys, time, torch.distributed as dist\n"
        f"store = dist.TCPStore('127.0.0.1', {server.port}, is_master=False)\n"
        "count, end = 0, time.perf_counter() + float(sys.argv[1])\n"
        "while time.perf_counter() < end: store.check(['a']); count += 1\n"
        "print(count)"
    )
    command = [sys.executable, "-c", code, str(seconds)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(clients)]
    return sum(int(one.communicate()[0]) for one in running) / seconds


def heard_after_s(waiting: int) -> float:
    """Seconds until the last of ``waiting`` connections has the item that all wait for."""
    raw = served()
    heard: list[float] = []

    def wait(store: SealedStore) -> None:
        store.get("item")
        heard.append(time.perf_counter())

    stores = [SealedStore(raw, b"key").connection(timedelta(minutes=5)) for _ in range(waiting)]
    threads = [threading.Thread(target=wait, args=[store]) for store in stores]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    told = time.perf_counter()
    SealedStore(raw, b"key").set("item", "x")
    for thread in threads:
        thread.join()
    return max(heard) - told


def ended_after_s(ranks: int) -> float:
    """Seconds from the SIGKILL of a rank until the command has ended, all ranks with it."""
    with tempfile.TemporaryDirectory() as folder:
        script, killed = Path(folder, "killed.py"), Path(folder, "killed")
        script.write_text(KILLED)
        command = [sys.executable, str(script), str(ranks), str(killed)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(command, stderr=subprocess.DEVNULL, env=environment, check=False)
        return time.time() - float(killed.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--waiting", type=int, default=500)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--worlds", type=int, nargs="*", default=WORLD_SIZES[1:])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print("".join(f"{head:>13}" for head in GUARDS))
    rows = [[size, each := guard_requests_per_s(size), each * min(size, PER_NODE), each * size]
            for size in WORLD_SIZES]  # fmt: skip
    for row in rows:
        print("".join(map(written, row)), flush=True)
    answers = answers_per_s()
    print("".join(f"{head:>13}" for head in COLUMNS))
    ranks = []
    for size in args.worlds:
        one = simulated(size)
        one["start_s"] = one["start_cpu_s"] + size * one["start_requests"] / answers
        ranks.append(one)
        print("".join(written(one.get(column, 0)) for column in COLUMNS.values()), flush=True)
    measured = {
        "store_answers_per_s": answers,
        "heard_after_s": heard_after_s(args.waiting),
        "ended_after_s": ended_after_s(args.ranks),
    }
    print(f"one store answers {measured['store_answers_per_s']:,.0f} requests a second")
    print(f"{args.waiting} waiting ranks have the entry after {measured['heard_after_s']:.3f} s")
    print(f"{args.ranks} ranks have ended {measured['ended_after_s']:.1f} s after a SIGKILL")
    if args.json:
        found = {"guards": [GUARDS, *rows], "ranks": ranks, **measured}
        args.json.write_text(json.dumps(found, indent=1))


def written(value: float) -> str:
    return f"{value:13,.2f}" if value != int(value) else f"{int(value):13,}"


if __name__ == "__main__":
    main()
