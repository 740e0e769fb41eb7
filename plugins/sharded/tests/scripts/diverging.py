import torch
from torch import nn
from torchbus import session


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def step(net, optimizer):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()


with session(strategy="fsdp", devices=2, accelerator="cpu", launch="fork", hang_timeout=5.0) as s:
    torch.manual_seed(0)
    net, other, big, x = Net(), Net(), nn.Linear(4, 400), torch.ones(2, 4)
    optimizer = torch.optim.SGD([*net.parameters(), *other.parameters(), *big.parameters()], 0.1)
    for number in range(16):
        if number == 12:
            pass  # odd
        step(net, optimizer)
    print("trained to the end")
