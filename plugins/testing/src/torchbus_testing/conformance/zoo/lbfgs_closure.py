"""LBFGS with strong Wolfe line search: one step evaluates the closure several times on the same
batch.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=10)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.linspace(-2, 2, 46).unsqueeze(1)
y = torch.sin(2 * x)
loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)
net = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(
    net.parameters(), lr=0.5, max_iter=3, history_size=5, line_search_fn="strong_wolfe"
)

for epoch in range(2):
    for inputs, targets in loader:

        def closure():
            optimizer.zero_grad()
            loss = criterion(net(inputs), targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    print(f"epoch {epoch}: loss before the last step {loss.item():.4f}")
