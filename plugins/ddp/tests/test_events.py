"""The plugin's own events: another way to make the process group, and to configure DDP."""

from __future__ import annotations

import inspect

import pytest
from torchbus import hookimpl, session
from torchbus.errors import UsageError
from torchbus.testing import Result, fork_script

from torchbus_ddp import events

SCRIPT = """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torchbus import hookimpl, session

    class Mine:
        hooked = 0

        @hookimpl
        def init_process_group(self, session, backend, store, timeout):
            print("group", backend, session.world_size, timeout.total_seconds())
            dist.init_process_group(backend, store=dist.PrefixStore("mine", store), rank=session.rank, world_size=session.world_size)
            return True

        @hookimpl
        def configure_ddp(self, module, options):
            made = DistributedDataParallel(module, **{**options, "bucket_cap_mb": 1})
            print("ddp", sum(p.numel() for p in module.parameters()) >= 4, sorted(options))
            made.register_comm_hook(self, self.halve)
            return made

        @staticmethod
        def halve(self, bucket):
            self.hooked += 1
            work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            return work.then(lambda done: done.value()[0] / dist.get_world_size())

    mine = Mine()
    with session(mine, strategy="ddp", devices=2, accelerator="cpu", launch="fork", timeout_s=99) as s:
        model = torch.nn.Linear(3, 1)
        for step in range(2):
            model.zero_grad()
            model(torch.full((2, 3), float(s.rank + step))).mean().backward()
            print("gradient", model.weight.grad.tolist())
        print("hooked", mine.hooked > 0)
    print("initialized", dist.is_initialized())
"""


@pytest.fixture(scope="module")
def result() -> Result:
    result = fork_script(SCRIPT)
    assert result.ok()
    return result


def test_the_group_is_made_by_the_listener(result):
    assert "group gloo 2 99.0\n" in result.stdout


def test_ddp_is_configured_by_the_listener(result):
    assert "ddp True ['broadcast_buffers', 'bucket_cap_mb'" in result.stdout  # and init_sync where torch has it
    assert "hooked True\n" in result.stdout


def test_gradients_are_averaged_all_the_same(result):
    assert "gradient [[0.5, 0.5, 0.5]]\ngradient [[1.5, 1.5, 1.5]]\n" in result.stdout


def test_the_group_is_closed_with_the_session(result):
    assert result.stdout.endswith("initialized False\n")


@pytest.mark.parametrize("name", ["init_process_group", "configure_ddp"])
def test_they_are_documented(name):
    assert len(inspect.getdoc(getattr(events, name))) > 100


def test_they_exist_only_with_ddp():
    class Mine:
        @hookimpl
        def configure_ddp(self, module):
            return None

    session(Mine(), strategy="ddp", devices=1, accelerator="cpu")
    with pytest.raises(UsageError, match="plugin Mine listens to 'configure_ddp', which is no event"):
        session(Mine(), strategy=None)
