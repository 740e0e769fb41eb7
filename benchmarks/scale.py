"""What ranks ask of their store, at world sizes that this machine does not have.

    python benchmarks/scale.py [--waiting 500] [--ranks 16] [--json FILE]

Counted: the requests of one rank's guard, which is told that there are so many ranks, over an hour
by a clock that the script turns; and its requests at the end of the job. The store is torch's
TCPStore; the guard's pulse, its news, its watch for hangs and the end are those of a session.
Measured: how many requests one such store answers in a second, how long an item of news takes to
reach ``--waiting`` ranks that wait for it, and, in a session of ``--ranks`` real ranks of which one
is killed, the time until the last of them has ended. Computed: the requests of all ranks together.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torchbus._launch.ending import Ending
from torchbus._launch.frozen.pulse import Pulse
from torchbus._launch.hang.watch import HangWatch
from torchbus._launch.store.news import FAILED, News
from torchbus._launch.store.sealed import SealedStore
from torchbus._launch.watch.ended import Ended
from torchbus._launch.watch.place import Place
from torchbus._ranks.world import World

WORLD_SIZES = (2, 8, 64, 512, 4096, 10000, 16384)
PER_NODE = 8
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
    """A clock that stands still until it is turned."""

    now_s = 0.0

    def seconds(self) -> float:
        return self.now_s


class Counted(SealedStore):
    """A store that counts its requests."""

    requests = 0

    @property
    def raw(self) -> dist.Store:
        self.requests += 1
        return super().raw


def served() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def guard_requests_per_s(world_size: int) -> float:
    """Requests of one guard per second while the job trains."""
    store = Counted(served(), b"key")
    for rank in (0, world_size - 1):
        store.set(f"pulse/{rank}", "1")
    rank, clock = world_size - 1, Turned()
    news = News(SealedStore(store._held[0], b"key"))
    news.start()
    local = range(max(0, rank + 1 - PER_NODE), rank)
    pulse = Pulse(store, rank, 0, sorted({0, *local}), clock, 600.0)  # type: ignore[arg-type]
    hang = HangWatch(store, news, rank, world_size, 60.0, lambda: Place(rank, "", "", "", 0))
    store.requests = beats = 0
    while clock.now_s < HOUR_S:
        clock.now_s += LOOK_S
        if pulse.beat():
            beats += 1
            store._bytes.set("pulse/0", store._sealed("pulse/0", str(beats)))
            store.requests -= 1  # of the next rank, not of this one
        hang.look()
    found = store.requests / HOUR_S
    news.tell(store, FAILED)
    news.stop()
    return found


def end_requests(world_size: int, rank: int) -> int:
    """Requests of a rank from the end of its loop until it has left."""
    raw = served()
    others = SealedStore(raw, b"key")
    store, news = Counted(raw, b"key"), News(others)
    news.start()
    for other in range(world_size):
        others.set(f"ended/{other}", Ended(9, 9).written())
    ending = Ending(World(rank, world_size), store, news)
    ending.say(Ended(9, 9))
    if rank:
        Ending(World(0, world_size), others, news).is_complete()
    while not ending.is_complete():
        time.sleep(0.01)
    ending.leave()
    news.stop()
    return store.requests


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
    """Seconds until the last of so many connections that wait for an item has it."""
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
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    heads = ("ranks", "guard/s", "node/s", "all/s", "end, rank 0", "end, other")
    print("".join(f"{head:>13}" for head in heads))
    rows = []
    for size in WORLD_SIZES:
        each = guard_requests_per_s(size)
        ends = end_requests(size, 0), end_requests(size, size - 1)
        rows.append((size, each, each * min(size, PER_NODE), each * size, *ends))
        print("".join(f"{value:13,.3f}" if value != int(value) else f"{int(value):13,}"
                      for value in rows[-1]), flush=True)  # fmt: skip
    measured = {
        "store_answers_per_s": answers_per_s(),
        "heard_after_s": heard_after_s(args.waiting),
        "ended_after_s": ended_after_s(args.ranks),
    }
    print(f"one store answers {measured['store_answers_per_s']:,.0f} requests a second")
    print(f"{args.waiting} waiting ranks have heard after {measured['heard_after_s']:.3f} s")
    print(f"{args.ranks} ranks have ended {measured['ended_after_s']:.1f} s after a SIGKILL")
    if args.json:
        args.json.write_text(json.dumps({"columns": heads, "rows": rows, **measured}, indent=1))


if __name__ == "__main__":
    main()
