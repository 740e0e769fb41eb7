"""Forward-forward: every layer has its own optimizer and its own loss, and no gradient passes
between layers.
"""

import argparse
from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Layer(nn.Linear):
    def __init__(self, size_in, size_out):
        super().__init__(size_in, size_out)
        self.opt = torch.optim.Adam(self.parameters(), lr=0.03)

    def forward(self, x):
        direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return torch.relu(torch.mm(direction, self.weight.T) + self.bias.unsqueeze(0))

    def train_layer(self, x_pos, x_neg):
        for _ in range(3):
            g_pos, g_neg = self.forward(x_pos).pow(2).mean(1), self.forward(x_neg).pow(2).mean(1)
            loss = torch.log(1 + torch.exp(torch.cat([2.0 - g_pos, g_neg - 2.0]))).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return self.forward(x_pos).detach(), self.forward(x_neg).detach(), loss.item()


class Net(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.layers = [Layer(a, b) for a, b in pairwise(dims)]

    def train_net(self, h_pos, h_neg):
        for i, layer in enumerate(self.layers):
            h_pos, h_neg, loss = layer.train_layer(h_pos, h_neg)
            print(f"layer {i} loss {loss:.6f}")


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(37, 6, generator=torch.Generator().manual_seed(5))
loader = DataLoader(TensorDataset(x, -x.roll(1, 1)), batch_size=args.batch_size, shuffle=True)
net = Net([6, 10, 10])
for x_pos, x_neg in loader:
    net.train_net(x_pos, x_neg)
first, second = net.layers
