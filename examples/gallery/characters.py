"""A small GPT over the characters of a text that ships with Python: its licence.

::

    python examples/gallery/characters.py
"""

from __future__ import annotations

import contextlib
import io

import torch
from pictures import curve
from torch import nn
from torchbus import session

BLOCK, WIDTH = 32, 48


class Small(nn.Module):
    def __init__(self, letters: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(letters, WIDTH), nn.Embedding(BLOCK, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, letters)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.tokens(tokens) + self.places(torch.arange(length))
        logits: torch.Tensor = self.head(self.blocks(x, mask, is_causal=True))
        return logits


def read() -> str:
    """The licence of Python, or the Zen where that is not installed."""
    text = str(__builtins__.license) if hasattr(__builtins__, "license") else ""
    with contextlib.redirect_stdout(io.StringIO()) as zen:
        import this  # noqa: F401
    return (text + zen.getvalue()) * 3


def main(steps: int = 150) -> None:
    torch.manual_seed(0)
    text = read()
    letters = sorted(set(text))
    data = torch.tensor([letters.index(letter) for letter in text])
    model = Small(len(letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(data) - BLOCK - 1, (16,)).tolist()
        rows = torch.stack([data[start : start + BLOCK + 1] for start in starts])
        optimizer.zero_grad()
        logits = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} at last")
    curve(losses, "characters.png")
    print(write(model, data[:1].view(1, 1), letters))


@torch.no_grad()
def write(model: Small, tokens: torch.Tensor, letters: list[str], length: int = 60) -> str:
    model.eval()
    for _ in range(length):
        last = model(tokens[:, -BLOCK:])[:, -1].softmax(1)
        tokens = torch.cat([tokens, torch.multinomial(last, 1)], 1)
    return "".join(letters[token] for token in tokens[0])


if __name__ == "__main__":
    with session(devices=2):
        main()
