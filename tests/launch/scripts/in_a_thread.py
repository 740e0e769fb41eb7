"""A loop in a process such as Ray Train's, without Ray: in_a_thread.py HOW WHO.

The process has a Unix socket and a process group of its own, and the loop runs in another thread
than the main one. The rank WHO does HOW: "raise" before its loop, or "sleep" after it. A process whose loop
has failed lives on for a while.
"""

from __future__ import annotations

import gc
import socket
import sys
import threading
import time

import torch.distributed as dist
import ways
from torchbus import session

gc.freeze()  # a session looks through all objects; those of torch need not be among them


def train(how: str, who: int) -> None:
    with session(strategy="ddp", hang_timeout=2.0) as s:
        if s.rank == who and how == "raise":
            raise ValueError("boom")
        parameters = ways.train(4)
        if s.rank == who and how == "sleep":
            time.sleep(8)
        s.barrier()
        ways.show(s, parameters)


def connected_unix_socket(path: str) -> socket.socket:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        client = socket.socket(socket.AF_UNIX)
        client.connect(path)
        return client


if __name__ == "__main__":
    how, who, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo")
    with connected_unix_socket(f"{folder}/{dist.get_rank()}.sock"):
        thread = threading.Thread(target=train, args=(how, who))
        thread.start()
        thread.join()
        if how == "raise" and dist.get_rank() == who:
            time.sleep(20)
    dist.destroy_process_group()
