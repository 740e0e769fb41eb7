"""The event that torchbus-ddp adds: it replaces how DDP is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchbus.plugin import hookspec

if TYPE_CHECKING:
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torchbus.plugin import Context


@hookspec(firstresult=True)
def configure_ddp(
    session: Context, module: nn.Module, options: dict[str, Any]
) -> DistributedDataParallel | None:
    """Make the ``DistributedDataParallel`` that averages gradients (Lightning's ``configure_ddp``).

    Fired once per set of trained parameters. ``module`` only holds parameters, and is never called.
    Pass ``options`` on, and register communication hooks on the result. Without an answer, it is
    ``DistributedDataParallel(module, **options)``.

    The last parameter of ``module`` holds the ranks' metadata, and must be averaged exactly:
    a hook that loses digits, or averages nothing, must leave it out. Set ``keeps_buckets = True``
    on the result if its buckets must keep their order after the first backward.
    """
