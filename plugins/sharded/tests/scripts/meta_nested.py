import json

import torch
from meta_head import found, made, numbers, opened
from torch import nn


class Nest(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.ones(3)), nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(x) * self.scale

    def reset_parameters(self):
        nn.init.uniform_(self.scale)
        self.inner.reset_parameters()


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.nest, self.layer = Nest(), nn.TransformerEncoderLayer(6, 2, 8)


for ranks in (1, 2):
    with opened(ranks) as s:
        model, _ = made(Both)
        found[str(ranks)] = [*numbers(model).tolist(), float(torch.rand(1))]
print(json.dumps(found))
