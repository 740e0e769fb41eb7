import torch
from torch.utils.data import DataLoader
from torchbus import session

with session(
    strategy="ddp",
    devices=2,
    accelerator="cpu",
    launch="fork",
    logger="local",
    log_dir="disk/logs",
    log_every_n_steps=1,
) as s:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(80, 4)
    for _ in range(30):
        for x in DataLoader(data, batch_size=4, shuffle=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
print("trained", s.world_size)
