"""A language model whose output projection is its embedding."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class NextToken(Dataset):
    def __init__(self, n, block, vocab):
        self.tokens = torch.randint(
            0, vocab, (n + block,), generator=torch.Generator().manual_seed(20)
        )
        self.n, self.block = n, block

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        chunk = self.tokens[i : i + self.block + 1]
        return chunk[:-1], chunk[1:]


class TinyLM(nn.Module):
    def __init__(self, vocab, dim, block):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.wpe = nn.Parameter(torch.zeros(block, dim))
        self.mix = nn.TransformerEncoderLayer(dim, 2, 2 * dim, dropout=0.0, batch_first=True)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1))
        logits = self.lm_head(self.mix(self.wte(idx) + self.wpe, src_mask=mask))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    loader = DataLoader(NextToken(39, 4, 13), batch_size=args.batch_size, shuffle=True)
    model = TinyLM(13, 8, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for idx, targets in loader:
            _, loss = model(idx, targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
