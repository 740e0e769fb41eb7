"""DCGAN proper: convolutions, batch normalisation and latents drawn with torch.randn in
the loop.
"""

import argparse

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self, nz, ngf):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, ndf):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, image):
        return self.main(image).view(-1, 1).squeeze(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--niter", type=int, default=2)
    opt = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)

    images = torch.tanh(torch.randn(44, 1, 8, 8, generator=torch.Generator().manual_seed(2)))
    dataloader = DataLoader(images, batch_size=opt.batch_size, shuffle=True)
    netG, netD = Generator(4, 4), Discriminator(4)
    netG.apply(weights_init)
    netD.apply(weights_init)
    criterion = nn.BCELoss()
    fixed_noise = torch.randn(3, 4, 1, 1)
    optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
    optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))

    for epoch in range(opt.niter):
        for data in dataloader:
            netD.zero_grad()
            label = torch.full((data.size(0),), 1.0)
            errD_real = criterion(netD(data), label)
            errD_real.backward()
            noise = torch.randn(data.size(0), 4, 1, 1)
            fake = netG(noise)
            errD_fake = criterion(netD(fake.detach()), label.fill_(0.0))
            errD_fake.backward()
            optimizerD.step()

            netG.zero_grad()
            errG = criterion(netD(fake), label.fill_(1.0))
            errG.backward()
            optimizerG.step()
        print("epoch", epoch, f"Loss_G {errG.item():.4f}")
    samples = netG(fixed_noise).detach()
