"""ddp with other ways to start the ranks."""

from __future__ import annotations

from torchbus_ddp.strategy import DDP


class DDPSpawn(DDP):
    """ddp for a decorated function, which new processes call too. It takes the arguments of DDP.

    The caller's process is rank 0: its model is trained in place, and it gets the function's return
    value.
    """

    name = "ddp_spawn"
    form = "spawn"


class DDPNotebook(DDP):
    """ddp for a block in a notebook's cell. It takes the arguments of DDP.

    The other ranks are forked when the block begins. They are silent, and end with the block. The
    kernel is rank 0, so its model is trained in place.
    """

    name = "ddp_notebook"
    form = "fork"
