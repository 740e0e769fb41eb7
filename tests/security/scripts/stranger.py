"""Somebody else on this machine: python stranger.py PORT FILE PIDS. Tells what it got of a job
whose store listens at that port.

It says to the ranks what stops them, were it believed. The file is written if a rank ever runs what
it sends.
"""

import json
import os
import pickle
import sys
import time
from datetime import timedelta

import torch.distributed as dist

port, proof, pids = int(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
FOUND = {"uid": os.getuid(), "read": [], "reached": False}


class Code:
    def __reduce__(self):
        return os.system, (f"touch {proof}",)


BAD = pickle.dumps(Code())
STOP = json.dumps({"rank": 1, "summary": "made up", "traceback": "", "diverged": False})
LEAVE = json.dumps({"save": True, "leave": 143, "next": 1})
ENDED = json.dumps([0, 0])


def put(store, name, value):
    """Where something is already, beside it as well as over it: not what ranks are about to read,
    which would only keep them waiting.
    """
    if not store.check([name]):
        store.set(name, value)


def attack(store):
    put(store, "job/failure", STOP)
    store.set("job/failure", STOP)
    for name in ("ended", "some ended", "all ended", "all joined", "joined"):
        put(store, name, "")
        put(store, f"job/{name}", "")
    for rank in range(3):
        put(store, f"job/ended/{rank}", ENDED)
        put(store, f"job/left/{rank}", "")
        put(store, f"job/report/{rank + 1}", "a line of the stranger's")
    for number in range(1, 400):
        put(store, f"checkpoint/asked/{number}", LEAVE)
    put(store, "checkpoint/signal", "15")
    put(store, "job/where/asked", "1000000000000")
    for key in (
        [key for key in store.list_keys() if "step-" in key] if hasattr(store, "list_keys") else []
    ):
        head, _, rest = key.partition("step-")
        step, _, tail = rest.partition(".")
        for ahead in range(1, 20):
            for word in ("1from1", "2from1", "2for1", "3from1"):
                put(
                    store,
                    f"{head}step-{int(step) + ahead:0{len(step)}}.{int(tail.split('.')[0]) + ahead}.partial/{word}",
                    BAD,
                )


for pid in pids:
    for name in ("environ", "mem", "fd", "auxv"):
        try:
            os.listdir(f"/proc/{pid}/{name}") if name == "fd" else open(
                f"/proc/{pid}/{name}", "rb"
            ).read(1)
            FOUND["read"].append(name)
        except PermissionError:
            pass
store = dist.TCPStore(
    "127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=20)
)
FOUND["reached"] = True
until = time.monotonic() + 4
while time.monotonic() < until:
    attack(store)
print(json.dumps(FOUND))
