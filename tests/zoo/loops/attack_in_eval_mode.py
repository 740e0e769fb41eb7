"""How strong a model is against FGSM: in eval mode, with backward for the gradients of inputs, over
the same loader several times.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(57)
    x = torch.randn(60, 4, generator=g)
    y = (x[:, 0] > 0).long()
    train = DataLoader(TensorDataset(x[:41], y[:41]), batch_size=args.batch_size, shuffle=True)
    test = DataLoader(TensorDataset(x[41:], y[41:]), batch_size=5)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for xb, yb in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(xb), yb).backward()
        optimizer.step()
    model.eval()
    correct = {}
    for strength in (0.0, 0.1, 0.3):
        correct[strength] = 0
        for xb, yb in test:
            xb.requires_grad_()
            model.zero_grad()
            nn.functional.cross_entropy(model(xb), yb).backward()
            correct[strength] += (
                (model(xb + strength * xb.grad.sign()).argmax(1) == yb).sum().item()
            )
        print(f"strength {strength}: {correct[strength]} of {len(test.dataset)} are right")
    return {"model": model, "optimizer": optimizer, "correct": torch.tensor(list(correct.values()))}


if __name__ == "__main__":
    result = main()
