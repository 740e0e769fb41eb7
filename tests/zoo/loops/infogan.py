"""InfoGAN: three optimizers over overlapping parameters (the information step moves generator and
trunk too).
"""

import argparse
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Generator(nn.Module):
    def __init__(self, latent, classes):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(latent + classes, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, z, code):
        return self.net(torch.cat([z, code], dim=1))


class Discriminator(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.adv_layer = nn.Linear(8, 1)
        self.aux_layer = nn.Linear(8, classes)

    def forward(self, x):
        features = self.trunk(x)
        return self.adv_layer(features), self.aux_layer(features)


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
opt = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
g = torch.Generator().manual_seed(12)
n, latent, classes = 39, 2, 3
images, noise = torch.randn(n, 4, generator=g), torch.randn(n, latent, generator=g)
dataset = TensorDataset(images, noise, torch.randint(0, classes, (n,), generator=g))
loader = DataLoader(dataset, batch_size=opt.batch_size, shuffle=True)

generator, discriminator = Generator(latent, classes), Discriminator(classes)
optimizer_G = torch.optim.Adam(generator.parameters(), lr=1e-3)
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
optimizer_info = torch.optim.Adam(
    itertools.chain(generator.parameters(), discriminator.parameters()), lr=1e-3
)

for epoch in range(2):
    for real, z, label in loader:
        code = F.one_hot(label, classes).double()
        valid, fake = torch.ones(len(real), 1), torch.zeros(len(real), 1)

        optimizer_G.zero_grad()
        generated = generator(z, code)
        validity, _ = discriminator(generated)
        g_loss = F.mse_loss(validity, valid)
        g_loss.backward()
        optimizer_G.step()

        optimizer_D.zero_grad()
        real_pred, _ = discriminator(real)
        fake_pred, _ = discriminator(generated.detach())
        d_loss = (F.mse_loss(real_pred, valid) + F.mse_loss(fake_pred, fake)) / 2
        d_loss.backward()
        optimizer_D.step()

        optimizer_info.zero_grad()
        _, pred_label = discriminator(generator(z, code))
        info_loss = F.cross_entropy(pred_label, label)
        info_loss.backward()
        optimizer_info.step()
    print(f"{epoch} D {d_loss.item():.5f} G {g_loss.item():.5f} info {info_loss.item():.5f}")
