"""Objects travel as pickles, which could run code: only ranks that know each other send them."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torchbus.errors import UsageError

from torchbus_strategy.collectives import all_gather_object, broadcast_object


def test_they_are_refused_outside_of_a_session() -> None:
    assert all_gather_object("alone", 1) == ["alone"]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for call in (lambda: all_gather_object(1, 2), lambda: broadcast_object(1)):
            with pytest.raises(UsageError, match="only inside of a session"):
                call()
    finally:
        dist.destroy_process_group()
