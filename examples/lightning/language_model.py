"""Lightning's language model as a plain loop: windows of four batches, and runs that go on.

::

    python examples/lightning/language_model.py --max-steps 8
    python examples/lightning/language_model.py                # goes on from step 8
    python examples/lightning/language_model.py --ranks 2 --folder runs/other

It learns the licence of this project, letter by letter. With ``--dropout 0`` the numbers are the
same on any number of ranks; dropout draws on each rank for its own part of a batch.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchbus import Session, session

TEXT = Path(__file__).parents[2] / "LICENSE"
LENGTH, WIDTH = 32, 32


class LanguageModel(nn.Module):
    def __init__(self, letters: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, WIDTH)
        self.position = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout, batch_first=True)
        self.head = nn.Linear(WIDTH, letters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        hidden = self.block(self.embedding(x) + self.position, src_mask=mask, is_causal=True)
        logits: torch.Tensor = self.head(hidden)
        return logits


def samples() -> tuple[TensorDataset, int]:
    text = TEXT.read_text(encoding="utf-8")[:6177]
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(letter) for letter in text])
    pieces = codes[: (len(codes) - 1) // LENGTH * LENGTH + 1]
    return TensorDataset(pieces[:-1].view(-1, LENGTH), pieces[1:].view(-1, LENGTH)), len(letters)


def train(s: Session, epochs: int, dropout: float) -> nn.Module:
    data, letters = samples()
    loader = DataLoader(data, batch_size=12, shuffle=True, drop_last=True)
    model = LanguageModel(letters, dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    steps = epochs * math.ceil(len(loader) / 4)  # real steps; epochs * len(loader) is the same
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in s.epochs(epochs):
        for x, y in loader:
            loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()  # a real step after each window of four batches
            schedule.step()  # the same
            optimizer.zero_grad()  # the same
            s.log("perplexity", loss.detach().exp(), on_epoch=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--folder", type=Path, default=Path("runs/language"))
    given = parser.parse_args()
    with session(
        devices=given.ranks,
        accelerator="cpu",
        batch="global",
        seed=42,
        accumulate_grad_batches=4,
        gradient_clip_val=1.0,
        max_steps=given.max_steps,
        checkpoint=given.folder,  # fit(ckpt_path="last") is the default: the next run goes on
        logger="local",
        log_dir=given.folder / "logs",
    ) as s:
        model = train(s, given.epochs, given.dropout)
        norm = sum(p.detach().double().square().sum() for p in model.parameters())
        s.print(f"after step {s.global_step}: squared norm of the weights {float(norm):.9f}")


if __name__ == "__main__":
    main()
