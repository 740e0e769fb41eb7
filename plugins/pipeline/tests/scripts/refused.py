"""Each loop that is refused, and what is said."""

import json

import torch
from exact_head import F, Transformer, mean_squares, mlp, nn, numbers, pipeline, tokens
from torchbus.errors import TorchbusError

x, y = numbers()[:8]
words, classes = tokens()[:8]


class Unet(Transformer):
    def forward(self, tokens):
        kept, x = [], self.embedding(tokens)
        for block in self.blocks[:2]:
            x = block(x)
            kept.append(x)
        for block in self.blocks[2:]:
            x = block(x + kept.pop())
        return self.head(x)


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


class Conditioned(Transformer):
    def forward(self, tokens):
        x = memory = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, memory.mean())
        return x


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def step(model, inputs=x, targets=y, **options):
    optimizer = sgd(model)
    loss = mean_squares(model, inputs, targets)
    loss.backward(**options)
    optimizer.step()
    return model


def tied():
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    return model


def penalty():
    model = mlp()
    sgd(model)
    return mean_squares(model, x, y) + sum(p.square().sum() for p in model.parameters())


def gradients():
    return [p.grad.norm() for p in step(mlp()).parameters()]


def slopes():
    inputs, model = x.clone().requires_grad_(), mlp()
    sgd(model)
    return torch.autograd.grad(model(inputs).sum(), inputs)


def by_itself():
    model = Transformer()
    sgd(model)
    return model.blocks[1](torch.randn(8, 5, 8))


def grown():
    model = mlp()
    sgd(model)
    model.append(nn.Tanh())
    return model(x)


def divergent(s):
    model = mlp()
    sgd(model)
    return model(x) if s.rank == 0 else mean_squares(model, x, y).backward()


def elsewhere(s):
    """One rank predicts twice, while the other goes on to backward."""
    model = mlp()
    sgd(model)
    if s.rank == 0:
        return model(x).sum().item() + model(x).sum().item()
    return mean_squares(model, x, y).backward()


def other_batches(s):
    """From the second backward on the loss is computed in turns, of one rank's targets."""
    model = mlp()
    optimizer = sgd(model)
    for number in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(x + (s.rank if number else 0)), y).backward()
        optimizer.step()


CASES = {
    "adds up": ({"balance": [2, 2]}, lambda s: step(mlp())),
    "stages": ({"balance": [1, 2, 2]}, lambda s: step(mlp())),
    "too few": ({}, lambda s: step(nn.Sequential(nn.Sequential(nn.Linear(6, 4))))),
    "too few blocks": ({"schedule": "interleaved"}, lambda s: step(mlp()[:3], x, y[:, :1])),
    "no list": ({"blocks": "layers"}, lambda s: step(mlp())),
    "tied": ({}, lambda s: step(tied(), x, x)),
    "skips": ({}, lambda s: step(Unet(), words, torch.randn(8, 5, 11))),
    "two outputs": ({}, lambda s: step(nn.Sequential(Pair(6, 4), nn.Tanh()))),
    "conditioned": ({}, lambda s: step(Conditioned(), words, torch.randn(8, 5, 8))),
    "pickled": ({}, lambda s: torch.save(step(mlp()), "model.pt")),
    "penalty": ({}, lambda s: penalty()),
    "gradients": ({}, lambda s: gradients()),
    "slopes": ({}, lambda s: slopes()),
    "create_graph": ({}, lambda s: step(mlp(), create_graph=True)),
    "inputs": ({}, lambda s: step(mlp(), inputs=x, targets=y) and sum_of(mlp())),
    "by itself": ({}, lambda s: by_itself()),
    "grown": ({}, lambda s: grown()),
    "lbfgs": ({}, lambda s: torch.optim.LBFGS(mlp().parameters())),
    "number": ({}, lambda s: step(mlp(), torch.randn(()), y)),
    "own function": ({"schedule": "1f1b"}, lambda s: reversed_in_turns()),
    "read late": ({"schedule": "1f1b"}, lambda s: read_late()),
    "diverging": ({}, divergent),
    "places": ({}, elsewhere),
    "other batches": ({"schedule": "1f1b"}, other_batches),
    "no rows": ({"microbatches": 2}, lambda s: rows_change()),
    "scaler": ({}, lambda s: torch.amp.GradScaler("cpu").scale(mean_squares(mlp(), x, y))),
    "sharded_save": ({"sharded_save": True, "checkpoint": "folder"}, lambda s: None),
}


def sum_of(model):
    sgd(model)
    mean_squares(model, x, y).backward(inputs=list(model.parameters()))


def reversed_in_turns():
    model = mlp()
    sgd(model)
    for _ in range(2):
        F.mse_loss(Reverse.apply(model(x)), y).backward()


def read_late():
    model, scale = mlp(), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
    for _ in range(2):
        out = model(x)
        F.mse_loss(out, y).backward()
        scaled = out * scale
        scale.grad = torch.ones(())
        optimizer.step()
    return scaled.sum().item()


class Shifted(nn.Linear):
    def forward(self, x, shift):
        return super().forward(x) + shift.mean()


class Shifts(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Shifted(6, 6) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x, torch.zeros(8))
        return x


def rows_change():
    model = Shifts()
    sgd(model)
    model(x)
    model(x[:5])


found = {}
for name, (options, loop) in CASES.items():
    torch.manual_seed(0)
    try:
        with pipeline(2, **options) as s:
            loop(s)
        found[name] = "nothing"
    except TorchbusError as error:
        found[name] = f"{type(error).__name__}: {error}"
    except Exception as error:
        found[name] = f"unexpected {type(error).__name__}: {error}"
print(json.dumps(found))
