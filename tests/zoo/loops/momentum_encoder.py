"""Contrastive learning by MoCo's idea: inside forward, the key encoder follows the query encoder,
and a layer keeps its weights in bounds.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Bounded(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-0.4, 0.4)
        return super().forward(x)


def make_encoder():
    return nn.Sequential(
        nn.Linear(5, 8), nn.ReLU(), Bounded(8, 8), nn.ReLU(), Bounded(8, 8), nn.Linear(8, 3)
    )


class MoCo(nn.Module):
    def __init__(self, m=0.9):
        super().__init__()
        self.m = m
        self.encoder_q, self.encoder_k = make_encoder(), make_encoder()
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data.copy_(param_q.data)
            param_k.requires_grad = False

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data = param_k.data * self.m + param_q.data * (1.0 - self.m)

    def forward(self, im_q, im_k):
        q = nn.functional.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            k = nn.functional.normalize(self.encoder_k(im_k), dim=1)
        return q, k


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
g = torch.Generator().manual_seed(61)
images = torch.randn(45, 5, generator=g)
views = images + 0.1 * torch.randn(45, 5, generator=g)
loader = DataLoader(TensorDataset(images, views), args.batch_size, shuffle=True)
model = MoCo()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
for epoch in range(2):
    for im_q, im_k in loader:
        q, k = model(im_q, im_k)
        loss = nn.functional.cosine_similarity(q, k).neg().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}")
