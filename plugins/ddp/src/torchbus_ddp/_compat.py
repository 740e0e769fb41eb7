"""Private names of torch that ddp uses; nothing else in this package uses one.

All were seen in 2.6 to 2.13.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel, distributed
from torchbus.compat.required import private, require
from torchbus.plugin import UsageError

will_execute_node: Callable[[Any], bool] = private(
    torch._C, "_will_engine_execute_node", "finds the parameters that a backward reaches"
)
"""Without it: UsageError at the first backward."""

version: Callable[[Tensor], int] = attrgetter("_version")
"""Grows with each change in place. Without it: AttributeError at the first backward."""

sparse_values: Callable[[Tensor], Tensor] = Tensor._values
"""The values of a sparse tensor that may not be coalesced.

Without it: AttributeError when ddp is imported.
"""

parameters: Callable[[Module], dict[str, object]] = attrgetter("_parameters")
"""A module's parameters by name. Without it: AttributeError when a model is found."""


def is_compiled(model: Module) -> bool:
    """Whether ``torch.compile`` has made the model. Without ``_orig_mod``: False."""
    return hasattr(model, "_orig_mod")


HAS_INIT_SYNC = "init_sync" in inspect.signature(DistributedDataParallel.__init__).parameters


@contextmanager
def without_initial_broadcast() -> Iterator[None]:
    """Keep DDP from sending rank 0's parameters, which all ranks have.

    A torch without ``init_sync=`` sends them between a forward and its backward, so autograd would
    see them as changed. 2.6 can't send complex parameters with gloo. If such a torch lacks
    ``_sync_module_states``: UsageError at the first backward.
    """
    if HAS_INIT_SYNC:
        yield
        return
    name = "_sync_module_states"
    require(distributed, name, "keeps DDP from sending parameters that are equal")
    original = getattr(distributed, name)
    setattr(distributed, name, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        setattr(distributed, name, original)


def rebuild_buckets(ddp: DistributedDataParallel) -> None:
    """Order the buckets as the gradients came.

    Without ``_rebuild_buckets``: AttributeError after the first backward.
    """
    ddp.reducer._rebuild_buckets()


COMPLEX_SINCE = "2.11"
"""Seen in 2.6 to 2.8: gloo sends no complex numbers. 2.9 and 2.10: not tried."""


def refuse_complex(parameters: Iterable[Tensor]) -> None:
    """Raise UsageError for a complex parameter that this torch can't average on CPUs."""
    if torch.__version__ < COMPLEX_SINCE and any(
        one.is_complex() and one.device.type == "cpu" for one in parameters
    ):
        raise UsageError(
            f"complex parameters on CPUs need torch {COMPLEX_SINCE} or later with several ranks,"
            f" and this is {torch.__version__}: upgrade torch, or hold them as real numbers and use"
            " torch.view_as_complex in the forward"
        )


class ReducerOnly(DistributedDataParallel):
    """DDP over parameters only, with the ids of those that have sparse gradients.

    DDP itself would look for Embedding modules, which ``module`` does not have.

    Without ``_build_params_for_reducer``: UsageError when the first reducer is made.
    """

    def __init__(self, module: Any, **options: Any) -> None:
        name = "_build_params_for_reducer"
        require(DistributedDataParallel, name, "passes the sparse gradients to DDP")
        self.__dict__["_sparse"] = module.sparse
        super().__init__(module, **options)

    def _build_params_for_reducer(self) -> tuple[list[Tensor], list[bool]]:
        parameters, _ = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return parameters, [id(parameter) in self.__dict__["_sparse"] for parameter in parameters]
