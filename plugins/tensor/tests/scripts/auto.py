"""What plan="auto" finds, and that it is exact."""

import json

import torch
from auto_models import NanoBlock
from tensor_head import Block, differ, opened, state
from torch import nn
from torch.nn import functional as F

found = {}


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 16, bias=False), nn.Linear(8, 16, bias=False)
        self.down_proj = nn.Linear(16, 8, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Grouped(nn.Module):
    """Llama's attention: fewer heads of keys and values than of queries."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.k_proj, self.v_proj = nn.Linear(8, 4, bias=False), nn.Linear(8, 4, bias=False)
        self.num_heads, self.num_key_value_heads = 4, 2

    def forward(self, x):
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, 4, 2).transpose(1, 2)
        k, v = (layer(x).view(B, T, 2, 2).transpose(1, 2) for layer in (self.k_proj, self.v_proj))
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, 8))


MODELS = {
    "nanogpt": lambda: nn.Sequential(NanoBlock(), NanoBlock()),
    "encoder": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True), 2
    ),
    "llama": lambda: nn.Sequential(Grouped(), Gated()),
    "own": lambda: nn.Sequential(nn.Linear(8, 12), Block(0.0, True, True), nn.Linear(12, 8)),
}


def train(make):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(3))
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        evaluated = model(x).detach()
    return model, state(model) | {"evaluated": evaluated}


for name, make in MODELS.items():
    _, alone = train(make)
    with opened(2, plan="auto") as s:
        model, ours = train(make)
        found[name] = differ(ours, alone)
        found[f"{name} plan"] = s.explain().split("plan  ")[1].split("plugins")[0].split("\n")
print(json.dumps(found))
