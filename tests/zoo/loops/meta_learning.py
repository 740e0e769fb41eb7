"""MAML: functional_call with fast weights from autograd.grad(create_graph=True), one backward per
meta batch.
"""

import argparse

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, Dataset


class SineTasks(Dataset):
    def __init__(self, tasks=29):
        g = torch.Generator().manual_seed(68)
        self.phase, self.amplitude = (
            torch.rand(tasks, generator=g),
            1 + torch.rand(tasks, generator=g),
        )
        self.x = torch.rand(tasks, 2, 5, 1, generator=g) * 4 - 2

    def __len__(self):
        return len(self.phase)

    def __getitem__(self, i):
        y = self.amplitude[i] * torch.sin(self.x[i] + self.phase[i])
        return self.x[i], y


def adapt(model, support_x, support_y, inner_lr):
    weights = dict(model.named_parameters())
    loss = nn.functional.mse_loss(functional_call(model, weights, support_x), support_y)
    grads = torch.autograd.grad(loss, weights.values(), create_graph=True)
    return {name: w - inner_lr * g for (name, w), g in zip(weights.items(), grads)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    loader = DataLoader(SineTasks(), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    meta_optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(2):
        for xs, ys in loader:
            meta_optimizer.zero_grad()
            outer_loss = torch.zeros(())
            for x, y in zip(xs, ys):
                fast = adapt(model, x[0], y[0], inner_lr=0.1)
                outer_loss = outer_loss + nn.functional.mse_loss(
                    functional_call(model, fast, x[1]), y[1]
                )
            outer_loss = outer_loss / len(xs)
            outer_loss.backward()
            meta_optimizer.step()
        print(f"epoch {epoch} outer loss {outer_loss.item():.5f}")
    return {"model": model, "meta_optimizer": meta_optimizer}


if __name__ == "__main__":
    result = main()
