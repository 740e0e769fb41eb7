"""How strong a model is against FGSM: in eval mode, with backward for the gradients of inputs, over
the same loader several times, between epochs of training.
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
    correct, sensitivity = [], []
    for epoch in range(2):
        model.train()
        for xb, yb in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(xb), yb).backward()
            optimizer.step()
        model.eval()
        for strength in (0.1, 0.3):
            right = 0
            for xb, yb in test:
                xb.requires_grad_()
                model.zero_grad()
                loss = nn.functional.cross_entropy(model(xb), yb)  # it lives while others train
                loss.backward()
                sensitivity.append(xb.grad.abs().sum())
                right += (model(xb + strength * xb.grad.sign()).argmax(1) == yb).sum().item()
            correct.append(right)
            print(f"epoch {epoch} strength {strength}: {right} of {len(test.dataset)} are right")
    return {
        "model": model,
        "optimizer": optimizer,
        "correct": torch.tensor(correct),
        "sensitivity": torch.stack(sensitivity),
    }


if __name__ == "__main__":
    result = main()
