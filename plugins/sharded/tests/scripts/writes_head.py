import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
g = torch.Generator().manual_seed(3)
X, Y = torch.randn(23, 6, generator=g), torch.randn(23, 2, generator=g)


@torch.no_grad()
def clamp(weight):
    weight.clamp_(-0.3, 0.3)


def clamp_data(weight):
    weight.data.clamp_(-0.3, 0.3)


def assign_data(weight):
    weight.data = weight.data.clamp(-0.3, 0.3)


@torch.no_grad()
def divide_by_norm(weight):
    weight.div_(weight.norm(dim=1, keepdim=True))


def look(weight):
    float(weight.data.sum())


class Block(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.linear, self.write = nn.Linear(6, 6), write

    def forward(self, x):
        self.write(self.linear.weight)
        return x + torch.tanh(self.linear(x))


class Net(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.blocks = nn.ModuleList(Block(write) for _ in range(3))
        self.head, self.out = Block(write), nn.Linear(6, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.out(self.head(x))


@torch.no_grad()
def follow(key, query):
    key.lerp_(query, 0.1)


def follow_data(key, query):
    key.data = key.data * 0.9 + query.data * 0.1


@torch.no_grad()
def follow_foreach(key, query):
    torch._foreach_lerp_([key], [query], 0.1)


class Followed(nn.Module):
    """The key network follows the query network, after the units of the latter have computed."""

    def __init__(self, write):
        super().__init__()
        self.query, self.key, self.write = Net(look), Net(look), write
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)

    def forward(self, x):
        made = self.query(x)
        for key, query in zip(self.key.parameters(), self.query.parameters(), strict=True):
            self.write(key, query)
        return made + 2 * self.key(x)


class Caller(nn.Module):
    """Begins late to write, and then calls a model that is no part of it."""

    def __init__(self, other):
        super().__init__()
        self.linear, self.others, self.calls = nn.Linear(6, 6), [other], 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 5:
            clamp_data(self.linear.weight)
        return self.others[0](self.linear(x))


def train(model, batch_size, between=lambda model: None):
    models = (model, *getattr(model, "others", ()))
    parameters = [parameter for one in models for parameter in one.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.5)
    for _ in range(3):
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=batch_size):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            between(model)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            model.eval()(X)
        model.train()
    return [value.clone() for value in model.state_dict().values()]
