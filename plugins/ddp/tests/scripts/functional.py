"""Prints, for each way to use torch.func, the largest difference between two ranks and one process."""

import copy
import json
import warnings

import torch
from torch import nn
from torch.func import functional_call, grad, jvp, stack_module_state, vmap
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)
g = torch.Generator().manual_seed(3)
X, Y = torch.randn(24, 6, generator=g), torch.randn(24, 1, generator=g)


def make_model():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def batches(batch_size):
    return DataLoader(TensorDataset(X, Y), batch_size=batch_size)


def first_call(batch_size):
    """The model's first call, before it has an optimizer, is in a transform."""
    model = make_model()
    jvp(model, (X[:3],), (torch.ones(3, 6),))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for x, y in batches(batch_size):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


def traced(batch_size):
    """The model's first call is in torch.jit.trace, and the loop calls what that has made."""
    model = make_model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        call = torch.jit.trace(model, X[:2])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for x, y in batches(batch_size):
        optimizer.zero_grad()
        (call(x) - y).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


def ensemble(batch_size):
    models = [make_model() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    parameters = {name: one.contiguous() for name, one in parameters.items()}
    base = copy.deepcopy(models[0]).to("meta")
    optimizer = torch.optim.SGD(list(parameters.values()), lr=0.05)

    def call(parameters, buffers, x):
        return functional_call(base, (parameters, buffers), (x,))

    for x, y in batches(batch_size):
        optimizer.zero_grad()
        outputs = vmap(call, in_dims=(0, 0, None))(parameters, buffers, x)
        (outputs - y).square().mean().backward()
        optimizer.step()
    return list(parameters.values())


def per_sample_gradients(batch_size):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def loss(parameters, x, y):
        return (functional_call(model, parameters, (x[None],)) - y).square().mean()

    for x, y in batches(batch_size):
        parameters = {name: one.detach() for name, one in model.named_parameters()}
        found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
        for name, parameter in model.named_parameters():
            parameter.grad = found[name].mean(0)
        optimizer.step()
    return list(model.parameters())


def train(way, batch_size):
    torch.manual_seed(0)
    return [one.detach().clone() for one in way(batch_size)]


found = {}
for way in (first_call, traced, ensemble, per_sample_gradients):
    one = train(way, 6)
    with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork"):
        two = train(way, 3)
    found[way.__name__] = max(float((a - b).abs().max()) for a, b in zip(one, two, strict=True))
print(json.dumps(found))
