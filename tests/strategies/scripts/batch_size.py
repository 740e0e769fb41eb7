import torch
from torchbus import session
from torchbus.errors import UsageError

tried = []


def try_out(batch_size):
    net(torch.ones(batch_size, 2)).square().mean().backward()
    tried.append(batch_size)
    if s.rank == 1 and batch_size > 20:
        raise RuntimeError("CUDA out of memory.")


def step(batch_size):
    try_out(1)
    optimizer.step()


with session("scale", strategy="ddp", devices=2, launch="fork") as s:
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = s.find_batch_size(try_out, 64)
    s.print(
        found == tried[-1] <= 20, len(tried) > 1, len(set(map(str, s.all_gather_object(tried))))
    )
    optimizer.zero_grad()
    net(torch.ones(4, 2)).sum().backward()
    s.print(torch.equal(*s.all_gather(net.weight.grad)))
    try:
        s.find_batch_size(step, 64)
    except UsageError as error:
        s.print(error)
