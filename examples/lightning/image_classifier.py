"""Lightning's image classification as a plain loop: early stop, and the best model at the end.

::

    python examples/lightning/image_classifier.py
    python examples/lightning/image_classifier.py --ranks 2
    python examples/lightning/image_classifier.py --fast-dev-run

Beside each option stands what the Trainer called it. The images ship inside scikit-learn.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchbus import Session, session


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * 4 * 4, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images)
        return logits


def digits() -> tuple[TensorDataset, TensorDataset, TensorDataset]:
    found = load_digits()
    images = torch.tensor(found.images / 16, dtype=torch.float32)[:, None]
    data = TensorDataset(images, torch.tensor(found.target))
    parts = random_split(data, [1200, 300, 297], torch.Generator().manual_seed(0))
    return parts[0], parts[1], parts[2]


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = [(model(images).argmax(1) == labels).float() for images, labels in loader]
    return torch.cat(right).mean().item()


def train(s: Session, model: nn.Module, epochs: int) -> None:
    training, validation, _ = digits()
    loader = DataLoader(training, batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for epoch in s.epochs(epochs):  # not range: a run that is started again goes on
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            s.log("train/loss", loss, prog_bar=True)
        schedule.step()
        found = accuracy(model, DataLoader(validation, batch_size=100))
        s.log("val/acc", found)
        s.print(f"epoch {epoch}: accuracy {found:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path("runs/digits"))
    parser.add_argument("--fast-dev-run", action="store_true")
    given = parser.parse_args()
    with session(
        devices=given.ranks,
        accelerator="cpu",
        batch="global",  # the numbers of one process, whatever the number of ranks
        seed=42,  # seed_everything(42)
        checkpoint=given.folder,  # ModelCheckpoint(dirpath)
        monitor="val/acc",  # ModelCheckpoint(monitor)
        mode="max",
        keep=1,  # save_top_k
        load_best=True,  # ckpt_path="best"
        early_stop="val/acc",  # EarlyStopping("val/acc", mode="max", patience=3)
        early_stop_mode="max",
        patience=3,
        logger="local",
        log_dir=given.folder / "logs",
        progress=True,  # enable_progress_bar
        fast_dev_run=given.fast_dev_run,
    ) as s:
        model = Net()
        train(s, model, given.epochs)
    # the block has ended: rank 0 goes on alone, with the weights of the best epoch
    print(f"test: accuracy {accuracy(model, DataLoader(digits()[2], batch_size=100)):.3f}")


if __name__ == "__main__":
    main()
