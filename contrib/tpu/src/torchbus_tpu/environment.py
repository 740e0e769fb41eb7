"""EXPERIMENTAL, never run on a TPU. The variables in which torch_tpu reads a rank's place.

Seen in torch_tpu 0.2.0.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torchbus.plugin import World

from torchbus_launch.relaunch import environment_variables

ADDRESSES = "TORCH_TPU_SLICEBUILDER_ADDRESSES"
"""One address for each rank. Only the process that starts the ranks can choose them."""
NOT_PREPARED = (
    "the ranks were started by {}, and {} is not set: call"
    " torch.tpu.distributed.set_tpu_launch_env() in the process that starts them"
)


@contextmanager
def prepared(set_launch_env: Callable[..., None], ranks: int | None) -> Iterator[None]:
    """Inside, the environment is what ``ranks`` ranks of this host must inherit."""
    before = dict(os.environ)
    set_launch_env(nproc_per_node=ranks)
    made = {name: value for name, value in os.environ.items() if before.get(name) != value}
    for name in made:
        del os.environ[name]
    os.environ.update(before)
    with environment_variables(made):
        yield


def told(world: World) -> AbstractContextManager[None]:
    """Inside, torch_tpu reads this rank's place, in torchrun's words."""
    return environment_variables(
        {"RANK": world.rank, "WORLD_SIZE": world.world_size, "LOCAL_RANK": world.local_rank}
    )
