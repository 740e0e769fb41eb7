"""Validates several times within an epoch, while the training iterator waits, and lowers the rate
by that score.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


@torch.inference_mode()
def evaluate(net, loader):
    net.eval()
    score = 0.0
    for x, y in loader:
        score += (net(x).argmax(1) == y).double().mean().item()
    net.train()
    return score / max(len(loader), 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(13)
    x = torch.randn(66, 5, generator=g)
    dataset = TensorDataset(x, (x[:, 0] > x[:, 1]).long())
    train_set, val_set = random_split(dataset, [54, 12], generator=torch.Generator().manual_seed(0))
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=5, shuffle=False, drop_last=True)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 2))
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=1e-2, weight_decay=1e-8, momentum=0.9, foreach=True
    )
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=1, factor=0.5)
    global_step = 0
    for epoch in range(3):
        model.train()
        epoch_loss = 0.0
        for inputs, targets in train_loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            global_step += 1
            epoch_loss += loss.item()
            if global_step % 3 == 0:
                val_score = evaluate(model, val_loader)
                scheduler.step(val_score)
                print(
                    f"step {global_step} validation {val_score:.4f} lr {optimizer.param_groups[0]['lr']:g}"
                )
        print(f"epoch {epoch} loss {epoch_loss / len(train_loader):.5f}")
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "val_score": val_score}


if __name__ == "__main__":
    result = main()
