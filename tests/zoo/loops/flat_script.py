# linear classifier, no functions, no classes
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
batch_size = int(sys.argv[sys.argv.index("--batch-size") + 1]) if "--batch-size" in sys.argv else 8

g = torch.Generator().manual_seed(1)
x = torch.randn(53, 6, generator=g)
y = (x[:, :1] - x[:, 1:2] > 0).double()
loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)

model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
criterion = torch.nn.BCEWithLogitsLoss()
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3
)

for epoch in range(3):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: last loss {loss.item():.5f}")
