import torch
from torchbus import session


def block(strategy, width):
    with session(strategy=strategy, devices=2, accelerator="cpu", launch="fork"):
        net = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.ones(2, width)).mean().backward()
        optimizer.step()
    print(strategy, "done")


for strategy, width in [("fsdp", 5), ("ddp", 4), ("fsdp", 4), ("fsdp", 5), ("fsdp", 4)]:
    try:
        block(strategy, width)
    except RuntimeError as error:
        print("failed:", "cannot be multiplied" in str(error))
