from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.manual_seed(7)
DATA = TensorDataset(torch.randn(37, 6), torch.randn(37, 3))
found = {}


def net(sizes=(6, 16, 16, 3)):
    layers = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def groups(model):
    named = list(model.named_parameters())
    return [
        {"params": [one for name, one in named if "weight" in name], "weight_decay": 0.1},
        {"params": [one for name, one in named if "bias" in name], "lr": 0.02},
    ]


def adamw(model):
    return torch.optim.AdamW(groups(model), lr=0.01)


def adagrad(model):
    """Its state is there before the first step."""
    return torch.optim.Adagrad(groups(model), lr=0.02, initial_accumulator_value=0.1)


def sgd(model):
    return torch.optim.SGD(groups(model), lr=0.05, momentum=0.9)


def batches(size, epochs=2):
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(DATA, size, shuffle=True, generator=generator)
    return (batch for _ in range(epochs) for batch in loader)


def train(size, make=adamw, clip=None, before=None):
    torch.manual_seed(1)
    model = net()
    optimizer = make(model)
    if before:
        before(model, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    printed = []
    for x, y in batches(size):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if clip:
            printed.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        optimizer.step()
        scheduler.step()
        printed.append(loss.item())
    return model, optimizer, printed


def gan(size):
    torch.manual_seed(1)
    generator, critic = net((6, 16, 3)), net((3, 16, 1))
    of_generator = torch.optim.Adam(generator.parameters(), lr=0.01)
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
    for noise, real in batches(size):
        made = generator(noise)
        of_critic.zero_grad()
        critic(real).mean().neg().backward()
        critic(made.detach()).pow(2).mean().backward()
        of_critic.step()
        of_generator.zero_grad()
        critic(made).mean().neg().backward()
        of_generator.step()
    return nn.ModuleList([generator, critic])


def flat(model):
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()])


def difference(one, other):
    """The largest difference, relative to the largest value."""
    return float((one - other).abs().max() / one.abs().max())


def of_states(one, other):
    """The largest difference of two optimizers' states."""
    one, other = one.state_dict()["state"], other.state_dict()["state"]
    return max(
        float((torch.as_tensor(entry[name]) - torch.as_tensor(other[key][name])).abs().max())
        for key, entry in one.items()
        for name in entry
    )


def opened(strategy, ranks=2, **options):
    return session(strategy=strategy, devices=ranks, launch="fork", accelerator="cpu", **options)
