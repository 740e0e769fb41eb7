"""A DistributedDataParallel that is never called as a module: only its reducer is used."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypedDict, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchbus.plugin import Context, mark_internal

from torchbus_ddp._compat import ReducerOnly, preserved_version, rebuild_buckets
from torchbus_ddp._compat import parameters as own_parameters

HAS_INIT_SYNC = "init_sync" in inspect.signature(DistributedDataParallel.__init__).parameters


class ReducerOptions(TypedDict, total=False):
    """Arguments of DistributedDataParallel."""

    bucket_cap_mb: float
    broadcast_buffers: bool
    init_sync: bool


def reducer_options(bucket_cap_mb: float) -> ReducerOptions:
    """With ``init_sync=False``, if torch has it: parameters are equal already."""
    options = ReducerOptions(bucket_cap_mb=bucket_cap_mb, broadcast_buffers=False)
    if HAS_INIT_SYNC:
        options["init_sync"] = False
    return options


@contextmanager
def unchanged_versions(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Keep autograd from taking the tensors for changed.

    An older torch broadcasts the parameters when it makes DDP, here between a forward and its
    backward. Their values stay the same.
    """
    with ExitStack() as stack:
        for tensor in tensors:
            stack.enter_context(preserved_version(tensor))
        yield


class ParameterHolder(nn.Module):
    """The parameters of a reducer, the header last: DDP starts its first bucket from the end.

    It also holds leaf tensors that are not an ``nn.Parameter``, which an ``nn.ParameterList`` would
    replace by copies.
    """

    def __init__(self, parameters: Sequence[Tensor], sparse: set[int]) -> None:
        super().__init__()
        mark_internal(self)
        own_parameters(self).update(
            (str(number), cast(nn.Parameter, one)) for number, one in enumerate(parameters)
        )
        self.sparse = sparse


class Reducer:
    """Averages the parameters numbered ``members``, and the header with them."""

    def __init__(
        self, session: Context, members: Sequence[int], ddp: DistributedDataParallel
    ) -> None:
        self.members = frozenset(members)
        self._ddp = ddp
        self._rebuilt: bool = getattr(ddp, "keeps_buckets", False)

    def prepare(self) -> None:
        """Expect the gradients of all members, once each, until ``finish``."""
        self._ddp.reducer.prepare_for_backward([])

    def finish(self) -> None:
        """After the first backward, order the buckets as the gradients came.

        This is one small collective, on all ranks. A DDP with ``keeps_buckets`` is left as it is.
        """
        if not self._rebuilt:
            self._rebuilt = True
            rebuild_buckets(self._ddp)


def make_reducer(
    session: Context,
    parameters: Sequence[Tensor],
    members: Sequence[int],
    header: Tensor,
    sparse: set[int],
    options: ReducerOptions,
) -> Reducer:
    """Ask the plugins for the DDP (event ``configure_ddp``), or make it.

    ``sparse`` holds ids of parameters.
    """
    holder = ParameterHolder([*(parameters[index] for index in members), header], sparse)
    with (
        warnings.catch_warnings(),
        torch.enable_grad(),
        unchanged_versions([] if HAS_INIT_SYNC else parameters),
    ):
        # torch renames broadcast_buffers; both names can't be given
        warnings.simplefilter("ignore", FutureWarning)
        made: DistributedDataParallel | None = session.bus.hook.configure_ddp(
            session=session, module=holder, options=options
        )
        return Reducer(
            session, members, made if made is not None else ReducerOnly(holder, **options)
        )
