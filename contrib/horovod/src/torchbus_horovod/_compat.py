"""Private names of torch, seen in 2.6 to 2.13, and modules of Horovod, seen in 0.28.1."""

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
    """Return the node that accumulates a parameter's gradient. Hold it, or torch frees it."""
    with torch.enable_grad():
        view = parameter.expand_as(parameter).grad_fn
    assert view is not None
    node = view.next_functions[0][0]
    assert node is not None
    return node


def horovod() -> Any:
    """Return the module ``horovod.torch``, which lacks ``init`` if Horovod's library is missing."""
    import horovod.torch

    return horovod.torch


def end(hvd: Any) -> None:
    """Shut Horovod down now, and not again when Python exits."""
    hvd.shutdown()
    atexit.unregister(hvd.shutdown)


LONGEST_VALUE = 1 << 24


@contextmanager
def rendezvous(address: str) -> Iterator[int]:
    """Run Horovod's rendezvous server, where its ranks find each other, and yield the port.

    Other programs may connect too. The server rejects HEAD, which Horovod's handler answers with
    names of files, and values above 16 MiB. An open connection does not delay the end.
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
