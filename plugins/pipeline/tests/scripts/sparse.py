"""Two pipelines of two stages, the first of which has a table whose gradients are sparse."""

import json

import torch
from exact_head import DataLoader, difference, mean_squares, nn, pipeline
from torch.utils.data import TensorDataset


def train():
    torch.manual_seed(0)
    table = nn.Embedding(11, 4, sparse=True)
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1))
    model = model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    words, wanted = torch.randint(0, 11, (32, 3)), torch.randn(32, 1, dtype=torch.float64)
    for batch in DataLoader(TensorDataset(words, wanted), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        mean_squares(model, *batch).backward()
        optimizer.step()
    return torch.cat([one.detach().reshape(-1) for one in model.state_dict().values()])


alone = train()
with pipeline(4, stages=2, microbatches=2, batch="global"):
    found = difference(alone, train())
print(json.dumps({"table": [found, True]}))
