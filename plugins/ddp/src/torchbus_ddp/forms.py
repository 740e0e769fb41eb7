"""ddp, with another way to start the ranks."""

from __future__ import annotations

from torchbus_ddp.strategy import DDP


class DDPSpawn(DDP):
    """ddp for a decorated function, which new processes call too. Arguments as for DDP.

    The caller's process is rank 0: the model that it passes is trained in place, and it gets the function's return value.
    """

    name = "ddp_spawn"
    form = "spawn"


class DDPNotebook(DDP):
    """ddp for the block of a notebook's cell: the other ranks are forked where it begins. Arguments as for DDP.

    The kernel is rank 0, so its model is trained in place; the other ranks are silent, and end with the block.
    """

    name = "ddp_notebook"
    form = "fork"
