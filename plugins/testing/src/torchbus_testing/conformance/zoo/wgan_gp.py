"""WGAN-GP: gradient penalty through autograd.grad(create_graph=True), the generator stepped every
n_critic batches.
"""

import argparse

import torch
from torch import autograd, nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--n-critic", type=int, default=2)
parser.add_argument("--lambda-gp", type=float, default=10.0)
opt = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Samples(Dataset):
    """Real points, the latent to be compared with each, and the mixing coefficient of
    the penalty.
    """

    def __init__(self, n):
        g = torch.Generator().manual_seed(10)
        self.real = torch.randn(n, 3, generator=g) + 2
        self.latent = torch.randn(n, 2, generator=g)
        self.alpha = torch.rand(n, 1, generator=g)

    def __len__(self):
        return len(self.real)

    def __getitem__(self, i):
        return self.real[i], self.latent[i], self.alpha[i]


def compute_gradient_penalty(D, real_samples, fake_samples, alpha):
    interpolates = (alpha * real_samples + (1 - alpha) * fake_samples).requires_grad_(True)
    d_interpolates = D(interpolates)
    gradients = autograd.grad(
        outputs=d_interpolates,
        inputs=interpolates,
        grad_outputs=torch.ones_like(d_interpolates),
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


generator = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
discriminator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer_G = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.0, 0.9))
loader = DataLoader(Samples(61), batch_size=opt.batch_size, shuffle=True)

for epoch in range(2):
    for i, (real, z, alpha) in enumerate(loader):
        optimizer_D.zero_grad()
        fake = generator(z)
        penalty = compute_gradient_penalty(discriminator, real, fake.detach(), alpha)
        d_loss = (
            -discriminator(real).mean()
            + discriminator(fake.detach()).mean()
            + opt.lambda_gp * penalty
        )
        d_loss.backward()
        optimizer_D.step()

        optimizer_G.zero_grad()
        if i % opt.n_critic == 0:
            g_loss = -discriminator(generator(z)).mean()
            g_loss.backward()
            optimizer_G.step()
    print(f"[Epoch {epoch}] [D loss: {d_loss.item():.5f}] [G loss: {g_loss.item():.5f}]")
