import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchbus import session
from torchbus.bus.base import hookimpl


class Mine:
    hooked = 0

    @hookimpl
    def init_process_group(self, session, backend, store, timeout):
        print("group", backend, session.world_size, timeout.total_seconds())
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("mine", store),
            rank=session.rank,
            world_size=session.world_size,
        )
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
