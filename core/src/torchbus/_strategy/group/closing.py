"""Closes process groups whose collectives were ended by force.

gloo loses a send that fails at the moment in which its peer asks for it: nobody wakes the thread
that waits for it (``Pair::handleRemotePendingRecv`` in gloo/transport/tcp/pair.cc, of torch 2.4 to
2.13). The destructor of the group waits for that thread, until the group's timeout. A traceback
that holds the group would run the destructor at the very end of the process.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

import torch.distributed as dist

from torchbus._compat.cpython import keep, let_go
from torchbus._compat.groups import engines_of_groups, open_groups

USUALLY_WITHIN_S = 2.0


class Engines:
    """What runs the collectives of all groups, freed by a thread of its own.

    It begins once Python holds no group any more. No process waits for it. At the end of the
    interpreter nothing is freed.
    """

    def __init__(self) -> None:
        self._all: list[Any] = engines_of_groups()
        self._watches = [weakref.ref(group, self._lost) for group in open_groups()]
        self._held = len(self._watches)
        self.thread = threading.Thread(target=self._free, name="torchbus-group", daemon=True)
        keep(self)

    def _lost(self, group: object) -> None:
        self._held -= 1
        if not self._held and not sys.is_finalizing():
            self.thread.start()

    def _free(self) -> None:
        self._all.clear()
        let_go(self)


def close_in_background() -> None:
    """Close all groups, and usually free them. A traceback may hold some for longer."""
    engines = Engines()
    dist.destroy_process_group()
    if engines.thread.ident is not None:
        engines.thread.join(USUALLY_WITHIN_S)
