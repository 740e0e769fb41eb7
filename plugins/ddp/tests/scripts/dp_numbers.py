import dataclasses
import json
from collections import namedtuple

import torch
from dp_head import dp, found
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from torchbus_testing.models import ConvNet, Transformer

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
        (x,) = inputs["x"]
        hidden = self[1](self[0](x)) * scale
        return {
            "out": Output(self[2](hidden), Pair(hidden, [table * self[0].bias[:3]])),
            "none": None,
        }


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


class Prototypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Mlp()

    def forward(self, x, prototypes=None):
        near = self.prototypes if prototypes is None else prototypes
        return -torch.cdist(self.backbone(x), near)


def prototypes(model, x, y):
    """What one divided forward returns is used whole by two others, as attribute and argument."""
    z = model.backbone(x)
    model.prototypes = torch.stack([z[::2].mean(0), z.square().mean(0), z[0]])
    return model(x).square().mean() + model(x.tanh(), 2 * model.prototypes).exp().mean()


def plain(model, x, y):
    return F.mse_loss(model(x), y)


def checkpointed(model, x, y):
    return F.mse_loss(checkpoint(model, x, use_reentrant=False), y)


def pairs(model, x, y):
    z = F.normalize(model(x), dim=1)
    return F.cross_entropy(z @ z.T / 0.5, torch.arange(len(x)).flip(0)) + 1e-2 * sum(
        p.square().sum() for p in model.parameters()
    )


def noisy(model, x, y):
    return F.mse_loss(model(x + torch.randn_like(x)), y)


def penalty(model, x, y):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
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
    return torch.cat(
        [
            torch.tensor([*printed, one.item()]),
            *(t.reshape(-1) for p in model.parameters() for t in (p.detach(), p.grad)),
        ]
    )


CASES = {
    "mlp": (Mlp, plain, {}),
    "checkpointed": (Mlp, checkpointed, {}),
    "convolutional net": (lambda: ConvNet(4), plain, {}),
    "transformer": (lambda: Transformer(4), plain, {}),
    "pairs of samples, a loss with a parameter": (Mlp, pairs, {}),
    "noise of the loop": (Mlp, noisy, {}),
    "gradient penalty": (Mlp, penalty, {}),
    "nested inputs and outputs": (Nested, nested, {}),
    "loss inside forward": (OwnLoss, own_loss, {}),
    "loss inside forward, divided": (OwnLoss, own_loss, {"loss_reduction": "mean"}),
    "gradients of gradients": (Mlp, maml, {}),
    "prototypes": (Prototypes, prototypes, {}),
}

for name, (make, loss_of, options) in CASES.items():
    alone = train(make, loss_of)
    seen_rows.clear()
    with dp(**options) as s:
        ours = train(make, loss_of)
        same = all(ours.equal(other) for other in s.all_gather(ours))
        found[name] = [
            float((ours - alone).abs().max() / alone.abs().max()),
            same,
            max(seen_rows[1:], default=0),
        ]
print(json.dumps(found))
