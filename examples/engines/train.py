"""A small GPT over the characters of a module of Python: a training loop as anybody writes it.

Nothing in it knows of torchbus. ``torchbus run`` gives it an engine::

    python examples/engines/train.py
    torchbus run --strategy fsdp --devices 2 -o batch=global examples/engines/train.py
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

BLOCK, WIDTH, HEADS, LAYERS = 32, 64, 4, 4
TEXT = Path(os.__file__).read_text(encoding="utf-8")[:20_000]


class Block(nn.Module):
    """Attention and a feed-forward part, each behind a norm and beside the residual."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head = HEADS
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.mlp = nn.ModuleDict(
            {"up": nn.Linear(WIDTH, 4 * WIDTH), "down": nn.Linear(4 * WIDTH, WIDTH)}
        )

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (batch, length, width)."""
        x = x + self.attend(self.ln_1(x))
        hidden = functional.gelu(self.mlp["up"](self.ln_2(x)))
        out: Tensor = x + self.mlp["down"](hidden)
        return out

    def attend(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            project(x).view(batch, length, HEADS, -1).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        joined: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return joined


class GPT(nn.Module):
    def __init__(self, letters: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(letters, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters)

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens``: (batch, length). Returns logits, (batch, length, letters)."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def read() -> tuple[TensorDataset, int]:
    letters = sorted(set(TEXT))
    codes = torch.tensor([letters.index(letter) for letter in TEXT])
    rows = codes[: len(codes) // (BLOCK + 1) * (BLOCK + 1)].view(-1, BLOCK + 1)
    return TensorDataset(rows[:, :-1], rows[:, 1:]), len(letters)


def main(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    data, letters = read()
    loader = DataLoader(data, batch_size=24, shuffle=True, drop_last=True)
    model = GPT(letters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    for epoch in range(options.epochs):
        for tokens, targets in loader:
            optimizer.zero_grad()
            logits = model(tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        scheduler.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    if options.folder:
        (options.folder / f"bytes-{os.getpid()}").write_text(str(kept_bytes()))
        torch.save(model.state_dict(), options.folder / "model.pt")


def kept_bytes() -> int:
    """Of all tensors that this process has: parameters, gradients, optimizer states, the data."""
    gc.collect()
    tensors = [one for one in gc.get_objects() if issubclass(type(one), Tensor)]
    local = [one.to_local() if hasattr(one, "to_local") else one for one in tensors]
    storages = [one.untyped_storage() for one in local]
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="write parameters and sizes there")
    main(parser.parse_args())
