"""Two blurred views of each sample; the blur is a convolution that the loader's workers call."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Blur:
    def __init__(self):
        self.conv = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def __call__(self, x, width):
        with torch.no_grad():
            self.conv.weight.copy_(torch.tensor([[[width, 1.0, width]]]))
            return self.conv(x)


class Views(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 1, 12, generator=torch.Generator().manual_seed(31))
        self.transform = Blur()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return [self.transform(self.x[i], 0.1 * (i % 3)), self.transform(self.x[i], 0.5)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    loader = DataLoader(
        Views(53), batch_size=args.batch_size, shuffle=True, num_workers=args.workers
    )
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-2)
    for epoch in range(2):
        for first, second in loader:
            a, b = encoder(torch.cat([first, second])).chunk(2)
            loss = (1 - nn.functional.cosine_similarity(a, b)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.6f}")
    return {"encoder": encoder, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
