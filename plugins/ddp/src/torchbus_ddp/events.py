"""Events that torchbus-ddp adds: to replace how the process group is made, and how DDP is configured."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torchbus.plugin import hookspec

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed import Store
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer
    from torchbus.plugin import Context


@hookspec(firstresult=True)
def init_process_group(session: Context, backend: str, store: Store, timeout: timedelta) -> bool | None:
    """Make torch's default process group (Lightning's ``init_ddp_connection``). Once per session, on all ranks. Return
    True when you have done it; without an answer it is ``torch.distributed.init_process_group``."""


@hookspec(firstresult=True)
def configure_ddp(session: Context, module: nn.Module, options: dict[str, Any]) -> DistributedDataParallel | None:
    """Make the ``DistributedDataParallel`` whose reducer averages the gradients of ``module``, which only holds
    parameters and is never called (Lightning's ``configure_ddp``). Once per set of trained parameters. Pass ``options``
    on; register communication hooks on the result. The last parameter of ``module`` holds what ranks tell each other, and must be
    averaged exactly: a hook that loses digits or averages nothing must leave it out. With an attribute ``keeps_buckets = True`` the result's
    buckets are not ordered anew after the first backward.
    Without an answer it is ``DistributedDataParallel(module, **options)``."""


@hookspec(firstresult=True)
def parameters_may_differ(session: Context) -> bool | None:
    """Whether ranks step by themselves for a while, so that parameters are not the same on all of them at every backward (local SGD).
    Asked once per session. Without an answer a parameter that differs between ranks is an error."""


@hookspec
def own_tensors(optimizer: Optimizer, tensors: list[Tensor]) -> None:
    """Some of an optimizer's tensors belong to the samples of this rank (a perturbation of its batch): they are not the same on all ranks,
    and nothing is sent for them. Comes before ``parameters_added`` is heard by others."""
