"""nanoGPT's get_batch(): positions drawn with torch.randint at every step, estimate_loss() with
draws of its own.
"""

import argparse

import torch
import torch.nn as nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
batch_size = parser.parse_args().batch_size
block_size, max_iters, eval_interval, eval_iters = 6, 8, 4, 3
torch.set_default_dtype(torch.float64)
torch.manual_seed(1337)

text = torch.randint(0, 9, (400,), generator=torch.Generator().manual_seed(42))
train_data, val_data = text[:360], text[360:]


def get_batch(split):
    data = train_data if split == "train" else val_data
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + block_size + 1] for i in ix])
    return x, y


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {
        split: sum(model(*get_batch(split))[1].item() for _ in range(eval_iters))
        for split in ("train", "val")
    }
    model.train()
    return {split: total / eval_iters for split, total in out.items()}


class BigramLanguageModel(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.token_embedding_table = nn.Embedding(vocab_size, vocab_size)

    def forward(self, idx, targets):
        logits = self.token_embedding_table(idx)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


model = BigramLanguageModel(9)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for it in range(max_iters):
    if it % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {it}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
    xb, yb = get_batch("train")
    logits, loss = model(xb, yb)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
val_loss = estimate_loss()["val"]
