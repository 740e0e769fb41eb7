"""torchft, and its private names, which only this module uses. They were seen in torchft 0.2."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import IO, Any

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
    """Raise UsageError if torchft is not installed, or has no ``perform_sync``."""
    if importlib.util.find_spec("torchft") is None:
        raise UsageError(MISSING)
    from torchft import local_sgd

    require(local_sgd._StreamingDiLoCoFragment, "perform_sync", "averages what DiLoCo has learned")


def streaming_save(state: object, file: IO[bytes]) -> None:
    """Write a state. Without ``_serialization``: ImportError when a replica joins."""
    from torchft.checkpointing._serialization import _streaming_save

    _streaming_save(state, file)


def streaming_load(file: IO[bytes]) -> object:
    """Read a state that ``streaming_save`` wrote, with tensors on the CPU.

    It may run code, so read only from a replica of this user. Without ``_streaming_load``:
    ImportError in the replica that joins.
    """
    from torchft.checkpointing._serialization import _streaming_load

    with warnings.catch_warnings():
        # torch warns because writes would change the buffer, which has no other user
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return _streaming_load(file, map_location="cpu", weights_only=False)


class Links:
    """Connects this rank with the same rank of the other replicas, by torchft's Manager and gloo.

    Without ``_quorum_id``: AttributeError at a quorum.
    """

    def __init__(
        self,
        state_dict: Callable[[], object],
        load_state_dict: Callable[[Any], None],
        timeout: timedelta,
        host: str,
        transport: Any,
        **given: Any,
    ) -> None:
        """Make a Manager with the arguments ``given``, which sends states by ``transport``.

        Raises RuntimeError or TimeoutError if the lighthouse does not answer.
        """
        from torchft import Manager, ProcessGroupGloo

        self.group = ProcessGroupGloo(timeout=timeout)
        self.transport = transport
        try:
            self.manager = Manager(
                pg=self.group,
                state_dict=state_dict,
                load_state_dict=load_state_dict,
                use_async_quorum=False,
                timeout=timeout,
                hostname=host,
                checkpoint_transport=transport,
                **given,
            )
        except BaseException:
            transport.shutdown()
            raise

    @property
    def quorum_id(self) -> int:
        """The number of the current quorum. Without ``_quorum_id``: AttributeError at a quorum."""
        number: int = self.manager._quorum_id
        return number

    def sum(self, tensor: torch.Tensor) -> None:
        """All-reduce a real tensor over replicas to its sum, in place.

        Raises RuntimeError if a replica has left.
        """
        self.group.allreduce([tensor], dist.AllreduceOptions()).wait()

    def close(self) -> None:
        """End the threads and connections."""
        self.group.abort(errored=False)
        with contextlib.suppress(RuntimeError):
            self.manager.shutdown()


class WithQuorum:
    """A Manager with a synchronous quorum, which DiLoCo requires.

    Without ``_use_async_quorum``: AttributeError when DiLoCo is made.
    """

    _use_async_quorum = False


class LocalAveraging:
    """torchft's LocalSGD or DiLoCo, whose average ``run`` starts.

    Without ``_fragments``: AttributeError when the optimizer is ready.
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
