"""VQ-VAE whose codebook lives in buffers and is moved by running averages inside forward."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


class VectorQuantizer(nn.Module):
    def __init__(self, n_embed=5, dim=3, decay=0.9, eps=1e-5):
        super().__init__()
        self.n_embed, self.decay, self.eps = n_embed, decay, eps
        embed = torch.randn(n_embed, dim)
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.zeros(n_embed))
        self.register_buffer("embed_avg", embed.clone())

    def forward(self, z):
        index = torch.cdist(z, self.embed).argmin(1)
        quantize = self.embed[index]
        if self.training:
            onehot = F.one_hot(index, self.n_embed).type(z.dtype)
            with torch.no_grad():
                self.cluster_size.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
                self.embed_avg.mul_(self.decay).add_(onehot.T @ z, alpha=1 - self.decay)
                n = self.cluster_size.sum()
                size = (self.cluster_size + self.eps) / (n + self.n_embed * self.eps) * n
                self.embed.copy_(self.embed_avg / size.unsqueeze(1))
        diff = (quantize.detach() - z).pow(2).mean()
        return z + (quantize - z).detach(), diff


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(6, 3)
        self.quantize = VectorQuantizer()
        self.dec = nn.Linear(3, 6)

    def forward(self, x):
        quantized, diff = self.quantize(self.enc(x))
        return self.dec(quantized), diff


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    data = torch.randn(58, 6, generator=torch.Generator().manual_seed(16))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    model = VQVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(2):
        for img in loader:
            model.zero_grad()
            out, latent_loss = model(img)
            recon_loss = F.mse_loss(out, img)
            loss = recon_loss + 0.25 * latent_loss
            loss.backward()
            optimizer.step()
        print(f"epoch: {epoch + 1}; mse: {recon_loss.item():.5f}; latent: {latent_loss.item():.3f}")
