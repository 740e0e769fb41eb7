"""torchft, and its private names; nothing else in this package uses one.

They were seen in torchft 0.2.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer
from torchbus.compat.required import require
from torchbus.plugin import UsageError

MISSING = (
    "strategy='ft' needs torchft, which is not installed: pip install torchft (wheels are for"
    " Linux on x86_64)"
)


def require_torchft() -> None:
    """Raise UsageError without torchft, or without what is used of it."""
    if importlib.util.find_spec("torchft") is None:
        raise UsageError(MISSING)
    from torchft import local_sgd

    require(local_sgd._StreamingDiLoCoFragment, "perform_sync", "averages what DiLoCo has learned")


class Links:
    """What connects this rank with the same rank of the other replicas.

    Without ``_quorum_id`` or ``_server``: AttributeError at a quorum, or at the end.
    """

    def __init__(
        self,
        state_dict: Callable[[], object],
        load_state_dict: Callable[[Any], None],
        timeout: timedelta,
        host: str,
        **given: Any,
    ) -> None:
        """Raises RuntimeError if the lighthouse does not answer. ``given``: for the Manager."""
        from torchft import Manager, ProcessGroupGloo
        from torchft.checkpointing import HTTPTransport

        class Transport(HTTPTransport[Any]):  # type: ignore[misc]
            """Says by what address the other replicas reach this machine."""

            def address(self) -> str:
                port: str = super().address().rsplit(":", 1)[1]
                return f"http://{host}:{port}"

        self.group = ProcessGroupGloo(timeout=timeout)
        self.transport = Transport(timeout, 0)
        try:
            self.manager = Manager(
                pg=self.group,
                state_dict=state_dict,
                load_state_dict=load_state_dict,
                use_async_quorum=False,
                timeout=timeout,
                hostname=host,
                checkpoint_transport=self.transport,
                **given,
            )
        except BaseException:
            self.close_transport()
            raise

    @property
    def quorum_id(self) -> int:
        """The number of the present quorum. Without ``_quorum_id``: AttributeError at a quorum."""
        number: int = self.manager._quorum_id
        return number

    def sum(self, tensor: torch.Tensor) -> None:
        """Add up a tensor over replicas, in place. Raises RuntimeError if one has left."""
        self.group.allreduce([tensor], dist.AllreduceOptions()).wait()

    def close(self) -> None:
        """End its threads and connections. Without ``_server``: a socket stays open."""
        self.group.abort(errored=False)
        with contextlib.suppress(RuntimeError):
            self.manager.shutdown()
        self.transport._server.server_close()

    def close_transport(self) -> None:
        """Stop the server of states, which has no pending request."""
        self.transport.allow_checkpoint(-1)  # a pending request continues
        self.transport.shutdown()
        self.transport._server.server_close()


class WithQuorum:
    """A Manager whose quorum is known when a step begins.

    Without ``_use_async_quorum``: AttributeError when DiLoCo is made.
    """

    _use_async_quorum = False


class Averaging:
    """torchft's LocalSGD or DiLoCo, run when the session says so.

    Without ``_fragments``: UsageError when the session starts.
    """

    def __init__(
        self, algorithm: str, manager: Any, model: Module, inner: Optimizer, outer: Any, every: int
    ) -> None:
        from torchft.local_sgd import DiLoCo, LocalSGD

        if algorithm == "local_sgd":
            self.run: Callable[[], object] = LocalSGD(manager, model, inner, every).sync
        else:
            self.fragment = DiLoCo(manager, [model], inner, outer, every)._fragments[0]
            self.run = self._average

    def _average(self) -> None:
        self.fragment.prepare_sync()
        self.fragment.perform_sync()
