"""Loops that know nothing of torchbus, and what they end with."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)
PLAN = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
GPT_PLAN = {
    "blocks.*.attn.[qkv]": "colwise",
    "blocks.*.attn.o": "rowwise",
    "blocks.*.up": "colwise",
    "blocks.*.down": "rowwise",
}
WIDTH, HEADS, WORDS, LENGTH = 12, 6, 11, 5


class Attention(nn.Module):
    def __init__(self, drop, kernel):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.n_head, self.drop, self.kernel = HEADS, nn.Dropout(drop), kernel
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH))[None, None])

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            layer(x).view(batch, length, self.n_head, width // self.n_head).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        if self.kernel:
            y = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, dropout_p=self.drop.p if self.training else 0.0
            )
        else:
            scores = (q @ k.transpose(-2, -1)) / (width // self.n_head) ** 0.5
            scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
            y = self.drop(F.softmax(scores, -1)) @ v
        return self.o(y.transpose(1, 2).contiguous().view(batch, length, width))


class Block(nn.Module):
    def __init__(self, drop, kernel, attends):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(drop)
        self.attn = Attention(drop, kernel) if attends else nn.Identity()
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.drop(self.down(self.drop(F.gelu(self.up(x)))))


class Gpt(nn.Module):
    """Predicts the next word; shares the embedding with the last layer."""

    def __init__(self, drop=0.0, kernel=True, attends=True):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(drop, kernel, attends) for _ in range(2)])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 2)
        self.blocks = nn.ModuleList([Block(0.0, False, False) for _ in range(2)])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def numbers(samples=22):
    g = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(samples, 5, generator=g), torch.randn(samples, 2, generator=g))


def words(samples=14):
    g = torch.Generator().manual_seed(2)
    x = torch.randint(WORDS, (samples, LENGTH + 1), generator=g)
    return TensorDataset(x[:, :-1].contiguous(), x[:, 1:].contiguous())


def loss_of(model, x, y):
    out = model(x)
    return (
        F.mse_loss(out, y)
        if y.is_floating_point()
        else F.cross_entropy(out.flatten(0, 1), y.flatten())
    )


def groups(model):
    weights = [p for p in model.parameters() if p.dim() > 1]
    return [
        {"params": weights, "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "lr": 0.02},
    ]


def make_optimizer(model, kind):
    if kind == "sgd":
        return torch.optim.SGD(groups(model), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(groups(model), lr=0.01)


def train(make, data, batch, kind="adamw", epochs=2, clip=0.5, every=1, s=None):
    """``every``: backwards in a window, where the loop accumulates by itself."""
    torch.manual_seed(0)
    model = make()
    optimizer = make_optimizer(model, kind)
    seen = []
    for _ in range(epochs):
        loader = DataLoader(data, batch, shuffle=True)
        for number, (x, y) in enumerate(loader):
            loss = loss_of(model, x, y) / every
            loss.backward()
            if (number + 1) % every == 0 or number + 1 == len(loader):
                if clip:
                    norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
                    assert type(norm) is torch.Tensor
                    seen.append(norm.item())
                optimizer.step()
                optimizer.zero_grad()
            seen.append(loss.item())
        model.eval()
        with torch.no_grad():
            seen.append(sum(loss_of(model, x, y).item() for x, y in DataLoader(data, 4)))
        model.train()
    return model, optimizer, torch.tensor(seen)


def opened(ranks, strategy="tp", **options):
    return session(strategy=strategy, devices=ranks, accelerator="cpu", launch="fork", **options)


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def differ(ours, theirs):
    """The largest difference, relative to the largest number."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[k] - theirs[k]).abs().max() / theirs[k].abs().max()) for k in theirs)


def alike(s, values):
    """Whether all ranks have the same tensors, bit for bit."""
    flat = torch.cat([value.reshape(-1) for value in values.values()])
    return all(flat.equal(other) for other in s.all_gather(flat))
