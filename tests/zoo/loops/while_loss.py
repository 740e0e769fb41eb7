# train until the loss of an epoch is small enough
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
eps = 2e-2
g = torch.Generator().manual_seed(31)
X = torch.randn(47, 3, generator=g)
Y = X @ torch.tensor([[1.0], [-2.0], [0.5]])
loader = DataLoader(TensorDataset(X, Y), int(sys.argv[2]), shuffle=True)
w = torch.nn.Linear(3, 1, bias=False)
opt = torch.optim.SGD(w.parameters(), lr=0.1)

loss = torch.tensor(float("inf"))
steps = 0
data = iter(loader)
while loss > eps:
    try:
        xb, yb = next(data)
    except StopIteration:
        data = iter(loader)
        xb, yb = next(data)
    opt.zero_grad()
    loss = ((w(xb) - yb) ** 2).mean()
    loss.backward()
    opt.step()
    steps += 1
print(f"{steps} steps, loss {loss.item():.6f}")
