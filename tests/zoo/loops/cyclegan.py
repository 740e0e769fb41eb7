"""Four nets, three optimizers, an identity loss, discriminators frozen while the
generators learn.
"""

import argparse
import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class UnpairedDataset(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(11)
        self.a = torch.randn(43, 4, generator=g)
        self.b = torch.randn(31, 4, generator=g) * 2 + 1

    def __getitem__(self, index):
        return {"A": self.a[index % len(self.a)], "B": self.b[index % len(self.b)]}

    def __len__(self):
        return max(len(self.a), len(self.b))


def set_requires_grad(nets, requires_grad):
    for net in nets:
        for param in net.parameters():
            param.requires_grad = requires_grad


def mlp(out, shared=None):
    return nn.Sequential(shared or nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, out))


class CycleGAN:
    def __init__(self):
        stem = nn.Linear(4, 6)  # both generators look through the same first layer
        self.netG_A, self.netG_B = mlp(4, stem), mlp(4, stem)
        self.netD_A, self.netD_B = mlp(1), mlp(1)
        generators = itertools.chain(self.netG_A.parameters(), self.netG_B[1:].parameters())
        self.optimizer_G = torch.optim.Adam(generators, lr=2e-3, betas=(0.5, 0.999))
        self.optimizer_D_A = torch.optim.Adam(self.netD_A.parameters(), lr=2e-3, betas=(0.5, 0.999))
        self.optimizer_D_B = torch.optim.Adam(self.netD_B.parameters(), lr=2e-3, betas=(0.5, 0.999))
        self.criterionGAN, self.criterionCycle = nn.MSELoss(), nn.L1Loss()

    def gan_loss(self, prediction, real):
        return self.criterionGAN(
            prediction, torch.tensor(1.0 if real else 0.0).expand_as(prediction)
        )

    def backward_G(self):
        self.fake_B, self.fake_A = self.netG_A(self.real_A), self.netG_B(self.real_B)
        self.loss_G = self.gan_loss(self.netD_A(self.fake_B), True) + self.gan_loss(
            self.netD_B(self.fake_A), True
        )
        self.loss_G = self.loss_G + 10 * self.criterionCycle(self.netG_B(self.fake_B), self.real_A)
        self.loss_G = self.loss_G + 10 * self.criterionCycle(self.netG_A(self.fake_A), self.real_B)
        self.loss_G = self.loss_G + 5 * self.criterionCycle(self.netG_A(self.real_B), self.real_B)
        self.loss_G.backward()

    def backward_D(self, net, real, fake):
        loss = 0.5 * (self.gan_loss(net(real), True) + self.gan_loss(net(fake.detach()), False))
        loss.backward()
        return loss

    def optimize_parameters(self, batch):
        self.real_A, self.real_B = batch["A"], batch["B"]
        set_requires_grad([self.netD_A, self.netD_B], False)
        self.optimizer_G.zero_grad()
        self.backward_G()
        self.optimizer_G.step()
        set_requires_grad([self.netD_A, self.netD_B], True)
        self.optimizer_D_A.zero_grad()
        self.optimizer_D_B.zero_grad()
        self.loss_D_A = self.backward_D(self.netD_A, self.real_B, self.fake_B)
        self.loss_D_B = self.backward_D(self.netD_B, self.real_A, self.fake_A)
        self.optimizer_D_A.step()
        self.optimizer_D_B.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    loader = DataLoader(UnpairedDataset(), batch_size=args.batch_size, shuffle=True)
    model = CycleGAN()
    for epoch in range(2):
        for batch in loader:
            model.optimize_parameters(batch)
        losses = model.loss_G, model.loss_D_A, model.loss_D_B
        print(f"epoch {epoch}:", *(f"{loss.item():.4f}" for loss in losses))
    return vars(model)


if __name__ == "__main__":
    result = main()
