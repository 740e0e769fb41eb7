"""What a type checker must not complain of."""

from __future__ import annotations

import torch
from torch.optim import SGD
from torchbus import session
from torchbus.bus.base import Plugin, hookimpl
from torchbus.session import current


class Mine(Plugin):
    @hookimpl
    def before_backward(self) -> None: ...


with session("log", Mine(), strategy="ddp", devices=[0, 1], logger=["wandb", Mine()]) as s:
    model = torch.nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in s.epochs(10):
        loss: torch.Tensor = model(s.shard(torch.ones(4, 2))).sum()
        loss.backward()
        with s.toggle(optimizer):
            optimizer.step()
        s.log("loss", loss, on_epoch=True, reduce="max")
    assert s.rank < s.world_size and isinstance(s.reduce(1.0, "sum"), torch.Tensor)
    s.save("folder")


@session(precision="bf16-mixed", accumulate_grad_batches={0: 4, 10: 1}, launch="fork")
def train(lr: float) -> float:
    running = current()
    assert running is not None
    running.log_dict({"lr": lr}, step=3)
    return lr


result: float = train(0.1)
