"""nanoGPT's blocks."""

from torch import nn
from torch.nn import functional as F


class Fused(nn.Module):
    """nanoGPT's attention: queries, keys and values in one layer."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n_head, self.n_embd = heads, width

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (
            one.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for one in (q, k, v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(8, 32), nn.Linear(32, 8)
        self.gelu, self.dropout = nn.GELU(), nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class NanoBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(8), Fused(), nn.LayerNorm(8), Mlp()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))
