import torch
from torch import nn
from torchbus.bus.base import hookimpl


class Counter:
    elements = 0

    @hookimpl
    def configure_ddp(self, module, options):
        ddp = nn.parallel.DistributedDataParallel(module, **options)
        ddp.register_comm_hook(None, self.count)
        return ddp

    def count(self, state, bucket):
        self.elements += bucket.buffer().numel()
        future = torch.distributed.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])


counter = Counter()
