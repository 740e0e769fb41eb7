"""How often a block that activation checkpointing computes again is computed, in each step; and
whether losses that it computes again train as in one process, without a warning.
"""

import warnings

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, smooth_l1_loss
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

warnings.simplefilter("ignore")
computed = []


class Block(nn.Module):
    """Nodes of autograd that save what shapes and indices are read from."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 1, 8, batch_first=True)
        self.embedding, self.query = nn.Embedding(7, 4), nn.Linear(4, 4)

    def forward(self, x, tokens):
        computed[-1] += 1
        x = (self.layer(x) + self.embedding(tokens))[:, torch.arange(5)]
        weights = torch.einsum("btd,bsd->bts", self.query(x), x).softmax(-1)
        return torch.where(x > 0, weights @ x, x) * x.std()


LOSSES = {
    "cross entropy": lambda out, y: cross_entropy(out.reshape(-1, 7), y.reshape(-1)),
    "of a mask": lambda out, y: (out.square().mean(-1) * (y > 2)).sum() / (y > 2).sum(),
}
for loss_of in LOSSES.values():
    computed.clear()
    with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork") as s:
        torch.manual_seed(0)
        block, head = Block(), nn.Linear(4, 7)
        optimizer = torch.optim.SGD([*block.parameters(), *head.parameters()], lr=0.01)
        torch.manual_seed(s.rank)
        for _ in range(3):
            computed.append(0)
            optimizer.zero_grad()
            tokens = torch.randint(7, (3, 5))
            hidden = checkpoint(block, torch.rand(3, 5, 4), tokens, use_reentrant=False)
            loss_of(head(hidden), tokens).backward()
            optimizer.step()
        s.print(computed)


def train(loss_of):
    """Losses that activation checkpointing computes again. The last share has fewer samples."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    data = TensorDataset(torch.randn(21, 4).double(), torch.randint(0, 3, (21,)))
    for x, y in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        checkpoint(loss_of, model(x), y, use_reentrant=False).backward()
        optimizer.step()
    return model.weight.detach().clone()


RECOMPUTED = [
    lambda h, y: mse_loss(h, h.detach() * 0.5 + 1),
    lambda h, y: cross_entropy(h, y) + 0.1 * smooth_l1_loss(h, torch.ones_like(h)),
]
warnings.simplefilter("error")
for loss_of in RECOMPUTED:
    alone = train(loss_of)
    with session(devices=2, accelerator="cpu", launch="fork", batch="global"):
        ours = train(loss_of)
    print(bool(torch.allclose(ours, alone, rtol=1e-12)))
