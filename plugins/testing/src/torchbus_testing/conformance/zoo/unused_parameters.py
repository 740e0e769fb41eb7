"""A pretraining head that is constructed and never used, and an auxiliary head used in the first
epoch only.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(6, 8)
        self.head = nn.Linear(8, 2)
        self.aux = nn.Linear(8, 2)
        self.mlm_head = nn.Linear(8, 30)

    def forward(self, x, with_aux):
        h = self.trunk(x).relu()
        return self.head(h) + (self.aux(h) if with_aux else 0)


def main(batch_size):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(21)
    x = torch.randn(53, 6, generator=g)
    y = torch.randint(0, 2, (53,), generator=g)
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for epoch in range(3):
        for xb, yb in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(xb, with_aux=epoch == 0), yb)
            loss.backward()
            optimizer.step()
        unused = [name for name, p in model.named_parameters() if p.grad is None]
        print(f"epoch {epoch}: loss {loss.item():.5f}, no gradient for {unused}")
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main(batch_size=int(sys.argv[-1]))
