"""PyTorch-GAN's sample_images: every few steps one batch of a validation loader, taken before
eval() is called.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=10)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(55)
    x = torch.randn(55, 4, generator=g)
    train = DataLoader(TensorDataset(x[:43]), batch_size=args.batch_size)
    val = DataLoader(TensorDataset(x[43:]), batch_size=5)
    generator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)
    seen = []

    def sample_images(step):
        (batch,) = next(iter(val))
        generator.eval()
        fake = generator(batch)
        seen.append(float(fake.sum()))
        print(f"step {step}: {len(fake)} images")
        generator.train()

    for epoch in range(2):
        for step, (xb,) in enumerate(train):
            loss = (generator(xb) - xb).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 2 == 0:
                sample_images(step)
    return {"generator": generator, "optimizer": optimizer, "seen": torch.tensor(seen)}


if __name__ == "__main__":
    result = main()
