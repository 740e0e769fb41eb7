"""dp: a tensor that is given in each call, with as many rows as the batch, is asked about."""

from __future__ import annotations

from torchbus_testing.forking import fork_script

SCRIPT = """
import json, warnings, torch
from torch import nn
from torchbus import session

torch.set_default_dtype(torch.float64)

class Near(nn.Module):
    def __init__(self, own):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("own", own)

    def forward(self, x, protos=None):
        return torch.cdist(self.layer(x), self.own if protos is None else protos).min(1).values

def train(kind):
    torch.manual_seed(0)
    protos, rows = torch.randn(8, 2), torch.randn(8, 3)
    net = Near(protos)
    given = {"constant": [protos], "parameter": [nn.Parameter(protos)]}.get(kind, [])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        x = rows if kind == "same batch" else torch.randn(8, 3)
        optimizer.zero_grad()
        net(x, *given).square().mean().backward()
        optimizer.step()
    return net.layer.weight.flatten().tolist()

found = {}
for kind in ("constant", "buffer", "parameter", "same batch"):
    alone = train(kind)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with session(strategy="dp", devices=2, launch="fork", accelerator="cpu"):
            found[kind] = torch.allclose(torch.tensor(train(kind)), torch.tensor(alone))
    found[kind] = [found[kind], [str(one.message) for one in said]]
print(json.dumps(found))
"""


def test_a_constant_argument_is_asked_about_and_the_remedy_works() -> None:
    found = fork_script(SCRIPT).json()
    (said,) = found["constant"][1]
    assert "same tensor of shape (8, 2) in each call" in said and "make it a buffer" in said
    for exact in ("buffer", "parameter", "same batch"):
        assert found[exact] == [True, []], exact
