"""Closes process groups whose collectives were ended by force.

gloo loses a send that fails at the moment in which its peer asks for it: nobody wakes the thread
that waits for it (``Pair::handleRemotePendingRecv`` in gloo/transport/tcp/pair.cc, of torch 2.4 to
2.13). The destructor of the group waits for that thread, until the group's timeout. A traceback
that holds the group would run the destructor at the very end of the process.
"""

from __future__ import annotations

import threading
import weakref

import torch.distributed as dist

from torchbus._compat.groups import engines_of_groups, open_groups

USUALLY_WITHIN_S = 2.0


def close_in_background() -> None:
    """Close all groups. A thread that no process waits for frees their engines, as soon as Python
    holds no group any more.
    """
    engines, freed = engines_of_groups(), threading.Semaphore(0)
    watches = [weakref.ref(group, lambda _: freed.release()) for group in open_groups()]

    def free() -> None:
        for _ in watches:
            freed.acquire()
        engines.clear()

    thread = threading.Thread(target=free, name="torchbus-group", daemon=True)
    thread.start()
    dist.destroy_process_group()
    if all(watch() is None for watch in watches):
        thread.join(USUALLY_WITHIN_S)
