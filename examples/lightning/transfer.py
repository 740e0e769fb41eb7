"""Lightning's transfer learning as a plain loop: a backbone that is frozen at first, the three best
checkpoints, a test from the best one, and predictions of all ranks in one file.

::

    python examples/lightning/transfer.py
    python examples/lightning/transfer.py --ranks 2

Beside each option stands what Lightning called it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchbus import Session, session

from torchbus_checkpoint.disk.choice import best


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU())
        self.head = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.backbone(x))
        return logits


def prepare_data(path: Path) -> None:
    """Stands for a download, which should happen once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(torch.randn(200, 8, generator=torch.Generator().manual_seed(0)), path)


def setup(path: Path) -> tuple[TensorDataset, TensorDataset, TensorDataset]:
    x = torch.load(path)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    training, validation, test = random_split(data, [120, 40, 40])
    return training, validation, test


@torch.no_grad()
def error(model: nn.Module, data: TensorDataset) -> float:
    model.eval()
    losses = [cross_entropy(model(x), y, reduction="sum") for x, y in DataLoader(data, 16)]
    return torch.stack(losses).sum().item() / len(data)


def train(s: Session, training: TensorDataset, validation: TensorDataset, epochs: int) -> None:
    model = Classifier()
    optimizer = torch.optim.Adam(model.head.parameters(), lr=0.02)  # the session adds the rest
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for epoch in s.epochs(epochs):
        model.train()
        for x, y in DataLoader(training, batch_size=20, shuffle=True):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        schedule.step()
        found = error(model, validation)
        s.log("val/loss", found)
        s.print(f"epoch {epoch}: validation {found:.4f}")


def predict(s: Session, model: nn.Module, data: TensorDataset, path: Path) -> None:
    predictions: list[int] = []
    model.eval()
    with torch.no_grad(), s.split_between_processes(data) as mine:
        for x, _ in DataLoader(mine, batch_size=16):
            predictions += model(x).argmax(1).tolist()
    path.write_text("".join(map(str, s.gather_in_order(predictions))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("runs/transfer"))
    given = parser.parse_args()
    data = given.folder / "data.pt"
    ranks = {"devices": given.ranks, "accelerator": "cpu", "seed": 42}
    with session(
        **ranks,
        batch="global",  # the numbers of one process, whatever the number of ranks
        unfreeze={"backbone": "epoch 2"},  # BackboneFinetuning(unfreeze_backbone_at_epoch=2)
        unfreeze_lr=0.1,  # backbone_initial_ratio_lr
        checkpoint=given.folder / "checkpoints",  # ModelCheckpoint(dirpath)
        monitor="val/loss",  # ModelCheckpoint(monitor)
        keep=3,  # save_top_k
        early_stop="val/loss",  # EarlyStopping
        patience=2,
    ) as s:
        s.once("data", lambda: prepare_data(data))  # LightningDataModule.prepare_data
        training, validation, _ = setup(data)
        train(s, training, validation, given.epochs)
    with session(**ranks) as s:  # trainer.test(ckpt_path="best"), trainer.predict
        model = Classifier()
        model.load_state_dict(load_file(best(given.folder / "checkpoints") / "model.safetensors"))
        _, _, test = setup(data)
        s.print(f"test {error(model, test):.4f}")
        predict(s, model, test, given.folder / "predictions.txt")
    print((given.folder / "predictions.txt").read_text())


if __name__ == "__main__":
    main()
