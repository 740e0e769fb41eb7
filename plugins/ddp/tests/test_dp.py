"""dp on two ranks: the numbers of one process with the same batch, whatever the loss compares and forward takes and returns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies
from torchbus import session
from torchbus.errors import UsageError
from torchbus.testing import Result, run_script

from torchbus_ddp.dp.rows import Rows, share_rows

HEAD = """
import dataclasses, json, torch
from collections import namedtuple
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
torch.set_default_dtype(torch.float64)
found = {}

def dp(**options):
    return session(**{"strategy": "dp", "devices": 2, "accelerator": "cpu", "launch": "fork", **options})
"""

NUMBERS = HEAD + """
from torchbus.testing.models import ConvNet, Transformer
seen_rows = []

class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x):
        seen_rows.append(len(x))
        return super().forward(x)

class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 4)

    def forward(self, x):
        return self.lstm(x.view(-1, 3, 2).transpose(0, 1).contiguous())[0]

Output = dataclasses.make_dataclass("Output", ["logits", "hidden"])
Pair = namedtuple("Pair", "first second")

class Nested(Mlp):
    def forward(self, inputs, *, scale, table):
        x, = inputs["x"]
        hidden = self[1](self[0](x)) * scale
        return {"out": Output(self[2](hidden), Pair(hidden, [table * self[0].bias[:3]])), "none": None}

class OwnLoss(Mlp):
    def forward(self, x, y):
        z = super().forward(x)
        loss = F.mse_loss(z, y)
        return z, loss, loss.item()

class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, a, b):
        return F.cross_entropy(self.scale * a @ b.T, torch.arange(len(a)))

def plain(model, x, y):
    return F.mse_loss(model(x), y)

def pairs(model, x, y):
    z = F.normalize(model(x), dim=1)
    return F.cross_entropy(z @ z.T / 0.5, torch.arange(len(x)).flip(0)) + 1e-2 * sum(p.square().sum() for p in model.parameters())

def noisy(model, x, y):
    return F.mse_loss(model(x + torch.randn_like(x)), y)

def penalty(model, x, y):
    x = x.clone().requires_grad_()
    slope, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean() + plain(model, x, y)

def nested(model, x, y):
    out = model({"x": [x]}, scale=2.0, table=torch.arange(3.0))["out"]
    return F.mse_loss(out.logits, y) + out.hidden.first.square().mean() + out.hidden.second[0].sum()

def own_loss(model, x, y):
    z, loss, number = model(x, y)
    found.setdefault("numbers", []).append(abs(loss.item() - number))
    return loss + z.square().mean()

def maml(model, x, y):
    weights = dict(model.named_parameters())
    inner = F.mse_loss(torch.func.functional_call(model, weights, x), y)
    slopes = torch.autograd.grad(inner, weights.values(), create_graph=True)
    fast = {name: weight - 0.1 * slope for (name, weight), slope in zip(weights.items(), slopes)}
    return F.mse_loss(torch.func.functional_call(model, fast, x.flip(0)), y)

def lstm(model, x, y):
    return model(x).square().mean()

def train(make, loss_of):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(23, 6), torch.randn(23, 4))
    model, clip = make(), Clip()
    optimizer = torch.optim.Adam([*model.parameters(), *clip.parameters()], lr=1e-2)
    printed = []
    for epoch in range(2):
        for x, y in DataLoader(data, batch_size=8, shuffle=True):  # the last batch has seven
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            if loss_of is pairs:
                loss = loss + clip(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            printed.append(loss.item())
    one = loss_of(model, *data[:1])  # fewer samples than ranks
    optimizer.zero_grad()
    one.backward()
    return torch.cat([torch.tensor([*printed, one.item()]), *(t.reshape(-1) for p in model.parameters() for t in (p.detach(), p.grad))])

CASES = {
    "mlp": (Mlp, plain, {}), "convolutional net": (lambda: ConvNet(4), plain, {}), "transformer": (lambda: Transformer(4), plain, {}),
    "pairs of samples, a loss with a parameter": (Mlp, pairs, {}), "noise of the loop": (Mlp, noisy, {}),
    "gradient penalty": (Mlp, penalty, {}), "nested inputs and outputs": (Nested, nested, {}),
    "loss inside forward": (OwnLoss, own_loss, {}), "loss inside forward, divided": (OwnLoss, own_loss, {"loss_reduction": "mean"}),
    "gradients of gradients": (Mlp, maml, {}),
}

for name, (make, loss_of, options) in CASES.items():
    alone = train(make, loss_of)
    seen_rows.clear()
    with dp(**options) as s:
        ours = train(make, loss_of)
        same = all(ours.equal(other) for other in s.all_gather(ours))
        found[name] = [float((ours - alone).abs().max() / alone.abs().max()), same, max(seen_rows[1:], default=0)]
print(json.dumps(found))
"""

CASES = [
    "mlp", "convolutional net", "transformer", "pairs of samples, a loss with a parameter", "noise of the loop", "gradient penalty",
    "nested inputs and outputs", "loss inside forward", "loss inside forward, divided", "gradients of gradients",
]  # fmt: skip


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    return dict(run_script(NUMBERS, env={"PYTHONWARNINGS": "ignore"}, timeout_s=110).json())


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_of_one_process_with_the_same_batch(case, numbers):
    difference, ranks_agree, _ = numbers[case]
    assert difference < 1e-9 and ranks_agree


def test_the_work_is_divided(numbers):
    """After its first call a model sees half of the eight samples; one that returns a loss sees all, unless it is said to be a mean."""
    assert [numbers[case][2] for case in ("mlp", "loss inside forward", "loss inside forward, divided")] == [4, 8, 4]


def test_numbers_that_forward_returns_are_those_of_the_whole_batch(numbers):
    assert max(numbers["numbers"]) < 1e-15


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
    return dict(run_script(MORE, timeout_s=110).json())


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


REFUSED = HEAD + """
class Trim(nn.Linear):
    def forward(self, x):
        return super().forward(x)[:, : int((x[:, 0] > 0).sum()) + 1]

class Count(nn.Linear):
    def forward(self, x):
        return super().forward(x), (x > 0).sum()

x = torch.cat([torch.ones(2, 3), -torch.ones(2, 3)])
with dp() as s:
    {body}
"""


def refuse(body: str) -> Result:
    return run_script(REFUSED.replace("{body}", body))


def test_outputs_whose_other_dimensions_depend_on_the_samples_are_refused():
    result = refuse("model = s.adopt(Trim(3, 4)); model(x); model(x)")
    assert result.ok(1)
    assert "output 0 of Trim has the shapes (2, 3), (2, 1) on the ranks, which have 2, 2 samples in dim 0: dp can't put them" in result.stderr


def test_counts_that_forward_makes_are_refused():
    result = refuse("model = s.adopt(Count(3, 4)); model(x); model(x)")
    assert result.ok(1)
    assert "output 1 of Count, torch.int64 of shape (), differs between the ranks" in result.stderr


def test_ranks_that_do_not_see_the_same_batch_are_found_out():
    result = refuse("model = s.adopt(nn.Linear(3, 1)); model(x * (s.rank + 1)).square().mean().backward()")
    assert result.ok(1)
    assert "strategy='dp': the ranks had different losses" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_dim": -1}, "batch_dim=-1: count dimensions from 0, since outputs may have fewer than inputs"),
        ({"batch_dim": "0"}, "batch_dim='0' is a str: it must be the number of a dimension, from 0"),
        ({"loss_reduction": "max"}, "loss_reduction='max' is unknown: use 'mean' or 'sum', or None where forward returns no loss"),
        ({"sync_loss": True}, "ddp and dp both own the strategy: pass only one of them"),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(UsageError) as error:
        session(strategy="dp", **options)
    assert words in str(error.value) or words.replace("ddp and dp", "dp and ddp") in str(error.value)


@given(total=strategies.integers(1, 200), size=strategies.integers(1, 9))
def test_every_row_is_computed_once(total, size):
    shares = [share_rows(total, size, rank) for rank in range(size)]
    own = [row for rows in shares if rows.own for row in range(rows.start, rows.start + rows.computed)]
    assert own == list(range(total))
    samples = shares[0].samples
    assert {rows.samples for rows in shares} == {samples} and max(samples) == samples[0]
    assert all(count == 0 or count >= min(2, total) for count in samples)
    assert all(isinstance(rows, Rows) and 1 <= rows.computed <= total for rows in shares)
