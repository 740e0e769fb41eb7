"""Private names of torch, and Horovod's modules.

Torch's were seen in 2.6 to 2.13, Horovod's in 0.28.1.
"""

from __future__ import annotations

import atexit
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torchbus.compat.required import private

graph_task: Callable[[], int] = private(
    torch._C, "_current_graph_task_id", "distinguishes a nested backward from the loop's"
)
"""Without it: UsageError at the first backward."""


def gradient_node(parameter: Tensor) -> Node:
    """The node that accumulates the parameter's gradient. Torch frees it without a reference."""
    with torch.enable_grad():
        view = parameter.expand_as(parameter).grad_fn
    assert view is not None
    node = view.next_functions[0][0]
    assert node is not None
    return node


def horovod() -> Any:
    """Horovod's functions for torch. Without its library, ``init`` and the others are missing."""
    import horovod.torch

    return horovod.torch


def end(hvd: Any) -> None:
    """End Horovod's thread, and forget that it was to be ended when Python exits."""
    hvd.shutdown()
    atexit.unregister(hvd.shutdown)


LONGEST_VALUE = 1 << 24


@contextmanager
def rendezvous(address: str) -> Iterator[int]:
    """Horovod's server, in which its ranks find each other. Returns its port.

    Strangers may connect, too: they get no names of files, which Horovod's handler answers to HEAD,
    can't fill the memory by one value, and don't delay the end by a connection that they hold.
    """
    from horovod.runner.http import http_server

    class QuietRendezvousHandler(http_server.RendezvousHandler):  # type: ignore[misc]
        def do_HEAD(self) -> None:
            self.send_status_code(405)

        def do_PUT(self) -> None:
            length = self.headers.get("Content-Length", "")
            if re.fullmatch("[0-9]{1,8}", length) and int(length) <= LONGEST_VALUE:
                super().do_PUT()
            else:
                self.send_status_code(413)

    class QuietRendezvousServer(http_server.RendezvousHTTPServer):  # type: ignore[misc]
        daemon_threads, block_on_close = True, False

        def handle_error(self, request: object, client_address: object) -> None: ...

    with QuietRendezvousServer((address, 0), QuietRendezvousHandler, verbose=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
