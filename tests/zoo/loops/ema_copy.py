"""An exponential moving average of the model, kept as a deepcopy and evaluated in its place."""

import argparse
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, model, decay):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for ema_v, model_v in zip(self.module.state_dict().values(), model.state_dict().values()):
            ema_v.copy_(self.decay * ema_v + (1.0 - self.decay) * model_v)


def train(model, ema, loader, optimizer):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        ema.update(model)
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--ema-decay", type=float, default=0.9)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(15)
    x = torch.randn(62, 3, generator=g)
    loader = DataLoader(TensorDataset(x, x.sin()), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(x[:17], x[:17].sin()), batch_size=args.batch_size)
    model = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 3))
    ema = EMA(model, args.ema_decay)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05)
    for epoch in range(2):
        train_loss = train(model, ema, loader, optimizer)
        with torch.no_grad():
            test_loss = sum(
                nn.functional.mse_loss(ema.module(a), b, reduction="sum").item()
                for a, b in test_loader
            )
        print(
            f"epoch={epoch} train={train_loss:.5f} ema={test_loss / len(test_loader.dataset):.5f}"
        )
    return {"model": model, "ema": ema.module, "optimizer": optimizer, "test_loss": test_loss}


if __name__ == "__main__":
    result = main()
