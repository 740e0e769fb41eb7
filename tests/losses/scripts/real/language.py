"""Sequences: transformers, recurrent nets, masks."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import Dataset, TensorDataset

from real.table import classes, loop, mlp, numbers


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp, self.heads = mlp(width, 2 * width, width), heads

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, c // self.heads).unbind(2)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary=11, width=8, length=6):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids, targets=None):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        flat = logits.view(-1, logits.size(-1))
        return logits, F.cross_entropy(flat, targets.view(-1), ignore_index=-1)

    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.dim() > 1]
        rest = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-3)


def sentences(r, ignored=0.0):
    ids = classes(11, r.size, 7)
    targets = ids[:, 1:].clone()
    targets[numbers(r.size, 6, seed=9) < ignored - 1] = -1
    return TensorDataset(ids[:, :-1], targets)


@loop
def nanogpt(r):
    """A loop over iterations, a rate set by hand, clipping, an evaluation in between."""
    model, best = GPT(), 1e9
    opt = model.configure_optimizers()
    loader = r.loader(sentences(r, 0.6), shuffle=True)
    batches = iter(loader)
    for it in range(2 * len(loader)):
        for group in opt.param_groups:
            group["lr"] = 1e-3 * (1 + math.cos(math.pi * it / (2 * len(loader))))
        if it % 3 == 0:
            model.eval()
            with torch.no_grad():
                held = r.plain_loader(sentences(r, 0.6), batch_size=8)
                losses = torch.stack([model(x, y)[1] for x, y in held])
            best = min(best, losses.mean().item())
            r.log(losses.mean())
            model.train()
        try:
            x, y = next(batches)
        except StopIteration:
            batches = iter(loader)
            x, y = next(batches)
        _, loss = model(x, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        r.log(loss)
        r.log(norm)
    return [model]


@loop
def masked_tokens(r):
    """A mean over a mask, written out."""
    model = GPT()
    opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for _ in range(2):
        for x, y in r.loader(sentences(r, 0.6), shuffle=True):
            logits, _ = model(x)
            each = F.cross_entropy(logits.transpose(1, 2), y.clamp(min=0), reduction="none")
            mask = (y >= 0).double()
            loss = (each * mask).sum() / mask.sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            r.log(loss)
    return [model]


class Lines(Dataset):
    """Of unlike lengths."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return numbers(2 + i % 5, 3, seed=i)


def padded(lines):
    return pad_sequence(lines, batch_first=True), torch.tensor([len(one) for one in lines])


@loop
def packed_rnn(r):
    net = nn.GRU(3, 5, batch_first=True)
    head = nn.Linear(5, 3)
    opt = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=1e-2, eps=1e-3)
    for _ in range(2):
        for x, lengths in r.loader(Lines(r.size), collate_fn=padded):
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            h, _ = pad_packed_sequence(net(packed)[0], batch_first=True, total_length=x.shape[1])
            each = (head(h) - x).square().mean(2)
            mask = torch.arange(x.shape[1]) < lengths[:, None]
            loss = each.masked_select(mask).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            r.log(loss)
    return [net, head]


@loop
def truncated_bptt(r):
    """A hidden state over the chunks of a batch, with a step for each."""
    net, head = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 3)
    opt = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.2)
    data = TensorDataset(numbers(r.size, 12, 3))
    for (x,) in r.loader(data, shuffle=True):
        state = None
        for chunk, target in zip(x[:, :-1].split(4, 1), x[:, 1:].split(4, 1)):
            if state is not None:
                state = tuple(part.detach() for part in state)
            h, state = net(chunk, state)
            loss = F.mse_loss(head(h), target)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.25)
            opt.step()
            r.log(loss)
    return [net, head]


@loop
def summed_over_time(r):
    """One backward over the losses of all time steps."""
    cell, head = nn.RNNCell(3, 5), nn.Linear(5, 3)
    opt = torch.optim.RMSprop([*cell.parameters(), *head.parameters()], lr=1e-2, eps=1e-2)
    for (x,) in r.loader(TensorDataset(numbers(r.size, 6, 3)), drop_last=True):
        h, loss = torch.zeros(len(x), 5), 0.0
        for t in range(5):
            h = cell(x[:, t], h)
            loss = loss + F.mse_loss(head(h), x[:, t + 1])
        loss = loss / 5
        opt.zero_grad()
        loss.backward()
        opt.step()
        r.log(loss)
    return [cell, head]
