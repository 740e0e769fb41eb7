import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)


def data(batch_size):
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size)


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def steps(model, optimizer, batch_size):
    for x, y in data(batch_size):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


model, optimizer = make()
alone = make()
torch.randn(300, 300) @ torch.randn(300, 300)  # more than one thread of the kernel's has worked
