"""The strategy ``ddp_sharded``: the choice between ZeRO's stages 1 and 2."""

from __future__ import annotations

from torchbus.plugin import Context, expect, hookimpl

from torchbus_sharded.fsdp.strategy import FSDP
from torchbus_sharded.zero1.strategy import ShardedOptimizer


class ShardedGradients(FSDP):
    """ZeRO stage 2 (torch's SHARD_GRAD_OP): gradients and optimizer states are divided.

    Parameters are whole from forward to the end of backward.

    Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models, SC 2020.
    """

    def __init__(self) -> None:
        super().__init__(reshard_after_forward=False)

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]]:
        if session.world_size == 1:
            return super().explain_lines(session)
        line = (
            "ddp_sharded: gradients and optimizer states are divided over ranks, by the engine of"
            " fsdp; parameters are whole from forward to the "
        )
        return {"strategy": [line + "end of backward, and divided between steps"]}


def ddp_sharded(*, shard_gradients: bool = False) -> ShardedOptimizer | ShardedGradients:
    """Divides optimizer states over ranks.

    Args:
        shard_gradients: divide gradients as well as optimizer states. The engine is that of fsdp,
            and refuses what fsdp refuses.
    """
    expect("shard_gradients", shard_gradients, bool, "True or False")
    return ShardedGradients() if shard_gradients else ShardedOptimizer()
