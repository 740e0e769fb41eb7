"""The events that torchbus-sharded adds.

Another plugin divides layers before fsdp shards them, or averages shards of gradients further.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchbus.plugin import hookspec

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.nn import Module


@hookspec(firstresult=True)
def divide_layers(model: Module, mesh: DeviceMesh) -> int | None:
    """Divide a model's layers over the ranks of ``mesh``, and return how many were divided.

    Fired once for each model, if ``session(strategy="fsdp", tp=...)`` says how many ranks share a
    layer. All ranks fire it, with equal values of the parameters. ``mesh`` is the dimension "tp" of
    ``session.world.mesh``. Replace parameters by DTensors over it: fsdp then shards these over the
    other dimensions. Without an answer, the model can't be trained.
    """


@hookspec(firstresult=True)
def average_beyond(parameters: list[Tensor], numbers: list[float]) -> list[float] | None:
    """Average a backward's gradients over replicas, each of which is a separate session.

    Fired once per backward, when the ranks of the session have averaged. All ranks fire it.
    ``parameters`` are this rank's shards, DTensors. Each ``grad``, of its shard's shape and dtype,
    is None, or the gradient of this backward only. Replace it by its mean over replicas, and return
    the means of ``numbers``.
    """
