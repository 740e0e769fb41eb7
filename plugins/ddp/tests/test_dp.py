"""What dp divides, what it leaves common to the ranks, and what it says of it."""

from __future__ import annotations

from typing import Any

import pytest
from torchbus.testing import fork_script

from .dp_script import HEAD

MORE = HEAD + """
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
    check("rows that forward has flattened, and sizes that look like it", all(a.equal(b) for some in ours for a, b in zip(some, whole)))
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
    whole, (h2, c2) = torch.func.functional_call(reference, {k: v.clone() for k, v in reference.named_parameters()}, (sequence, state))
    check("batch_dim", torch.allclose(out, whole, atol=1e-12) and torch.allclose(h, h2, atol=1e-12) and torch.allclose(c, c2, atol=1e-12))

with dp() as s:
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        out.float().square().mean().backward()
        optimizer.step()
    check("16 bits", torch.equal(*s.all_gather(model.weight.detach())) and model.weight.isfinite().all())
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def more() -> dict[str, Any]:
    return dict(fork_script(MORE, timeout_s=110).json())


@pytest.mark.parametrize(
    "fact",
    [
        "rows that forward has flattened, and sizes that look like it", "dropout is drawn by each rank", "all ranks have all outputs",
        "random numbers of the loop are common", "s.shard gives the whole batch", "batch_dim", "16 bits",
    ],
)  # fmt: skip
def test_what_holds(fact, more):
    assert more[fact]


def test_explain_says_what_is_done(more):
    text = " ".join(more["explain"].split())
    assert "dp over gloo: every rank has the whole batch" in text
    assert "flat: Flat, 28 parameters in 2 tensors: each outermost forward is divided over 2 ranks along dim 0" in text
