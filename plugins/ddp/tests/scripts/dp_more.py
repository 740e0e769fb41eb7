import json

import torch
from dp_head import dp, found
from torch import nn


def check(name, ok):
    found[name] = bool(ok)


class Flat(nn.Linear):
    def forward(self, x, table=None):
        return super().forward(x).view(-1, 2), torch.ones(8) * self.bias.sum(), torch.arange(16)


torch.manual_seed(0)
x = torch.randn(8, 6)
flat, lstm = Flat(6, 4), nn.LSTM(6, 3)
with dp() as s:
    s.adopt(flat)
    whole = flat(x)
    ours = flat(x), flat(x)
    check(
        "rows that forward has flattened, and sizes that look like it",
        all(a.equal(b) for some in ours for a, b in zip(some, whole)),
    )
    noise = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 1, bias=False))
    s.adopt(noise)
    nn.init.ones_(noise[1].weight)
    noise(torch.ones(16, 6)), noise.train()
    out = noise(torch.ones(16, 6))
    check("dropout is drawn by each rank", not out[:8].equal(out[8:]))
    check("all ranks have all outputs", all(out.equal(other) for other in s.all_gather(out)))
    check("random numbers of the loop are common", torch.equal(*s.all_gather(torch.rand(3))))
    check("s.shard gives the whole batch", s.shard(x).equal(x))
    found["explain"] = s.explain()

with dp(batch_dim=1) as s:
    s.adopt(lstm)
    sequence, state = torch.randn(5, 8, 6), (torch.randn(1, 8, 3), torch.randn(1, 8, 3))
    reference = nn.LSTM(6, 3)
    reference.load_state_dict(lstm.state_dict())
    for _ in range(2):
        out, (h, c) = lstm(sequence, state)
    whole, (h2, c2) = torch.func.functional_call(
        reference, {k: v.clone() for k, v in reference.named_parameters()}, (sequence, state)
    )
    check(
        "batch_dim",
        torch.allclose(out, whole, atol=1e-12)
        and torch.allclose(h, h2, atol=1e-12)
        and torch.allclose(c, c2, atol=1e-12),
    )

with dp() as s:
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        out.float().square().mean().backward()
        optimizer.step()
    check(
        "16 bits",
        torch.equal(*s.all_gather(model.weight.detach())) and model.weight.isfinite().all(),
    )
print(json.dumps(found))
