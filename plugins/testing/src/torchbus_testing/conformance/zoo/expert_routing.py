"""A mixture of experts in which an expert that no sample of the batch is routed to does not run at
all.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MixtureOfExperts(nn.Module):
    def __init__(self, dim, n_experts):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(n_experts))
        self.head = nn.Linear(dim, 1)

    def forward(self, x, route):
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            chosen = route == i
            if chosen.any():
                out[chosen] = expert(x[chosen]).tanh()
        return self.head(out).squeeze(-1)


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(41, 5, generator=torch.Generator().manual_seed(22))
# neighbours go to one expert, so that ranks run different experts; the fifth is idle
route = torch.arange(41) // 4 % 4
loader = DataLoader(TensorDataset(x, route, x.sum(1)), batch_size=args.batch_size)
model = MixtureOfExperts(5, 5)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    for xb, rb, yb in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(xb, rb), yb)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.5f}")
