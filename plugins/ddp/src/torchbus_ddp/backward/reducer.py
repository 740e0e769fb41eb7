"""Making and using a DistributedDataParallel whose reducer is driven. It is never called as a module."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchbus.plugin import Context

HAS_INIT_SYNC = "init_sync" in inspect.signature(DistributedDataParallel.__init__).parameters


@contextmanager
def unchanged_versions(tensors: Sequence[Tensor]) -> Iterator[None]:
    """An older torch broadcasts parameters when DDP is made, between a forward and its backward: the values stay the
    same, but autograd must not take them for changed."""
    with ExitStack() as stack:
        for tensor in tensors:
            stack.enter_context(torch.autograd._unsafe_preserve_version_counter(tensor))
        yield


class ReducerOnly(DistributedDataParallel):
    """DDP over parameters alone, told which of them have sparse gradients (it would look for Embedding modules)."""

    def __init__(self, module: ParameterHolder, **options: Any) -> None:
        self.__dict__["_sparse"] = module.sparse
        super().__init__(module, **options)

    def _build_params_for_reducer(self) -> tuple[list[Tensor], list[bool]]:
        parameters, _ = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return parameters, [id(parameter) in self.__dict__["_sparse"] for parameter in parameters]


class ParameterHolder(nn.Module):
    """The parameters of a reducer, the header last: DDP starts its first bucket from the end.

    Leaf tensors that are no ``nn.Parameter`` count as well; an ``nn.ParameterList`` would replace them by copies.
    """

    def __init__(self, parameters: Sequence[Tensor], sparse: set[int]) -> None:
        super().__init__()
        self.torchbus_internal = True
        self._parameters.update({str(number): parameter for number, parameter in enumerate(parameters)})  # type: ignore[arg-type, misc]
        self.sparse = sparse


class Reducer:
    """Averages the parameters numbered ``members``, and the header with them."""

    def __init__(self, session: Context, members: Sequence[int], ddp: DistributedDataParallel) -> None:
        self.members = frozenset(members)
        self._ddp = ddp
        self._rebuilt: bool = getattr(ddp, "keeps_buckets", False)

    def prepare(self) -> None:
        """Expect the gradients of all members, once each, until ``finish``."""
        self._ddp.reducer.prepare_for_backward([])

    def finish(self) -> None:
        """After the first backward: order the buckets as the gradients came, where they may change. One small collective, on all ranks."""
        if not self._rebuilt:
            self._rebuilt = True
            self._ddp.reducer._rebuild_buckets()


def make_reducer(
    session: Context, parameters: Sequence[Any], members: Sequence[int], header: Any, sparse: set[int], options: dict[str, Any]
) -> Reducer:
    """Ask the plugins for the DDP (event ``configure_ddp``), or make it. ``sparse`` holds ids of parameters."""
    holder = ParameterHolder([*(parameters[index] for index in members), header], sparse)
    with warnings.catch_warnings(), torch.enable_grad(), unchanged_versions([] if HAS_INIT_SYNC else parameters):
        warnings.simplefilter("ignore", FutureWarning)  # torch renames broadcast_buffers; both names can't be given
        made: DistributedDataParallel | None = session.bus.hook.configure_ddp(session=session, module=holder, options=options)
        return Reducer(session, members, made if made is not None else ReducerOnly(holder, **options))
