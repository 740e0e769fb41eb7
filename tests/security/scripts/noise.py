"""Somebody else on this machine, with any Python: noise.py PORTS PIDS FOLDER.

Until FOLDER/end is there, it connects to the ports in the file PORTS and sends what they do not
expect, or nothing; and it tries to read what belongs to the processes in the file PIDS. Tells how
often it was let in, and what it could read.
"""

import json
import os
import struct
import sys
import time
from contextlib import suppress
from socket import create_connection

PORTS, PIDS, END = sys.argv[1], sys.argv[2], os.path.join(sys.argv[3], "end")
BEGIN = b"\0" + struct.pack("<I", 0x3C85F7CE)  # of torch's store
AS_A_RANK = [
    struct.pack("<q", 1),  # as gloo's second rank, and as its first
    struct.pack("<q", 0),
    bytes(4096),
]
"""Its connections stay open: where one of these closes at once, the job ends with gloo's error."""
SENT = [
    b"",
    b"\xff" * 4096,
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    BEGIN + b"\x01" + struct.pack("<Q", 50) + b"half of a name",
    BEGIN + b"\x7f" * 64,
]
TOO_LARGE = [
    BEGIN + b"\x01" + struct.pack("<Q", 1 << 62),
    BEGIN + b"\x00" + struct.pack("<Q", 3) + b"abc" + struct.pack("<Q", (1 << 63) - 1),
]
"""torch's store writes a stack to stderr for each of these: a few thousand would only fill it."""
TOO_LARGE_AT_MOST = 100
HELD_AT_MOST = 800


def numbers(file):
    with suppress(OSError, ValueError), open(file) as source:
        return [int(word) for word in source.read().split()]
    return []


def attack(port, held):
    """Leave some connections open, as one who waits; return how many ports let it in."""
    global too_large
    entered = 0
    too_large += len(TOO_LARGE)
    as_a_rank = AS_A_RANK if len(held) < HELD_AT_MOST else []
    for sent in as_a_rank + SENT + (TOO_LARGE if too_large <= TOO_LARGE_AT_MOST else []):
        with suppress(OSError):
            connection = create_connection(("127.0.0.1", port), timeout=0.5)
            entered += 1
            connection.sendall(sent)
            if sent in as_a_rank or len(held) < HELD_AT_MOST // 2:
                held.append(connection)
            else:
                connection.close()
    return entered


def readable(pid):
    for name in ("environ", "mem", "maps", "fd"):
        with suppress(OSError):
            path = f"/proc/{pid}/{name}"
            if os.listdir(path) if name == "fd" else open(path, "rb").read(1):
                yield name  # what is there of a process that has just ended is empty


held, entered, attacked, read, too_large = [], 0, set(), set(), 0
while not os.path.exists(END):
    for port in numbers(PORTS):
        attacked.add(port)
        entered += attack(port, held)
    for pid in numbers(PIDS):
        read.update(readable(pid))
    time.sleep(0.02)
print(json.dumps([os.getuid(), entered, len(attacked), sorted(read)]))
