"""A DistributedDataParallel that is never called as a module: only its reducer is used."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TypedDict, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchbus.plugin import Context, mark_internal

from torchbus_ddp._compat import (
    HAS_INIT_SYNC,
    ReducerOnly,
    rebuild_buckets,
    refuse_complex,
    without_initial_broadcast,
)
from torchbus_ddp._compat import parameters as own_parameters


class ReducerOptions(TypedDict, total=False):
    """Arguments of DistributedDataParallel."""

    bucket_cap_mb: float
    broadcast_buffers: bool
    init_sync: bool


def reducer_options(bucket_cap_mb: float) -> ReducerOptions:
    """Return DDP's arguments. ``init_sync`` is False, if torch has it: parameters are equal."""
    options = ReducerOptions(bucket_cap_mb=bucket_cap_mb, broadcast_buffers=False)
    if HAS_INIT_SYNC:
        options["init_sync"] = False
    return options


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

    def __init__(self, members: Sequence[int], ddp: DistributedDataParallel) -> None:
        self.members = frozenset(members)
        self._ddp = ddp
        self._has_order: bool = getattr(ddp, "keeps_buckets", False)

    def prepare(self) -> None:
        """Expect the gradients of all members, once each, in this backward."""
        self._ddp.reducer.prepare_for_backward([])

    def put_in_order(self) -> None:
        """After the first backward, also a failed one, order the buckets as the gradients came.

        This is one small collective, on all ranks. It is left out for a DDP with ``keeps_buckets``.
        After a second backward, torch could not do it.
        """
        if not self._has_order:
            self._has_order = True
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

    ``sparse`` holds the ids of parameters with sparse gradients.
    """
    refuse_complex(parameters)
    holder = ParameterHolder([*(parameters[index] for index in members), header], sparse)
    with (
        warnings.catch_warnings(),
        torch.enable_grad(),
        without_initial_broadcast(),
    ):
        # torch renames broadcast_buffers; both names can't be given
        warnings.simplefilter("ignore", FutureWarning)
        made: DistributedDataParallel | None = session.bus.hook.configure_ddp(
            session=session, module=holder, options=options
        )
        return Reducer(members, ReducerOnly(holder, **options) if made is None else made)
