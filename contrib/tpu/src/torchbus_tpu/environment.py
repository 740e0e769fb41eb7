"""EXPERIMENTAL, never run on a TPU. The variables in which torch_tpu reads a rank's place.

Seen in torch_tpu 0.2.0.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torchbus.plugin import World

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
    try:
        set_launch_env(nproc_per_node=ranks)
        yield
    finally:
        restore(before)


@contextmanager
def told(world: World) -> Iterator[None]:
    """Inside, torch_tpu reads this rank's place, in torchrun's words."""
    before = dict(os.environ)
    place = {"RANK": world.rank, "WORLD_SIZE": world.world_size, "LOCAL_RANK": world.local_rank}
    os.environ.update({name: str(value) for name, value in place.items()})
    try:
        yield
    finally:
        restore(before)


def restore(before: Mapping[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
