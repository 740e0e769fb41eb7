"""A strategy of ten lines, on several forms of loops: the largest relative difference of each."""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

from torchbus_strategy.strategy import Strategy

RANKS = int(sys.argv[1])
BATCH = 12
torch.set_default_dtype(torch.float64)
x = torch.randn(43, 4, generator=torch.Generator().manual_seed(0))
y = torch.randn(43, 1, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, y)


class AllReduce(Strategy):
    name = "all_reduce"

    def average(self, tensors):
        for tensor in tensors:
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def batches(size):
    return DataLoader(data, size, shuffle=True)


def mse(model, inputs, targets):
    return nn.functional.mse_loss(model(inputs), targets)


def plain(size, s):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(2):
        for inputs, targets in batches(size):
            optimizer.zero_grad()
            mse(model, inputs, targets).backward()
            optimizer.step()
    return [model]


def loss_is_read(size, s):
    """The learning rate follows the loss, which is the mean over ranks."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for inputs, targets in batches(size):
        optimizer.zero_grad()
        loss = mse(model, inputs, targets)
        loss.backward()
        optimizer.param_groups[0]["lr"] = min(0.1, loss.item() / 10)
        optimizer.step()
    return [model]


def retained_gradients(size, s):
    """Cleared every other time, into zeros."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, (inputs, targets) in enumerate(batches(size)):
        mse(model, inputs, targets).backward()
        optimizer.step()
        if number % 2:
            optimizer.zero_grad(set_to_none=False)
    return [model]


def without_sync(size, s):
    """Two batches for each step, of which only the second is synchronised."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, (inputs, targets) in enumerate(DataLoader(data, size, drop_last=True)):
        ends = number % 2 == 1
        with contextlib.nullcontext() if ends or s is None else s.no_sync():
            mse(model, inputs, targets).backward()
        if ends:
            optimizer.step()
            optimizer.zero_grad()
    return [model]


def adversaries(size, s):
    """Two models and optimizers. The first one's parameters are frozen in the other's turn."""
    first, second = network(), nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4).eval())
    optimizers = [torch.optim.SGD(model.parameters(), 0.05) for model in (first, second)]
    for inputs, _ in batches(size):
        for turn, optimizer in enumerate(optimizers):
            first.requires_grad_(not turn)
            optimizer.zero_grad()
            (second(first(inputs)).square().mean() * (-1) ** turn).backward()
            optimizer.step()
    return [first, second]


def branches(size, s):
    """Samples choose the branch: some ranks don't reach some parameters, and one is never used."""
    model = nn.ModuleList([network(), network(), network()])
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for inputs, targets in batches(size):
        optimizer.zero_grad(set_to_none=True)
        parts = inputs[:, :1] > 0.5
        loss = inputs.new_zeros(())
        for part, branch in ((parts, model[0]), (~parts, model[1])):
            if part.any():
                difference = (branch(inputs) - targets).square() * part
                loss = loss + difference.sum() / len(inputs)
        loss.backward()
        optimizer.step()
    return [model]


def by_closure(size, s):
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for inputs, targets in batches(size):

        def closure(inputs=inputs, targets=targets):
            optimizer.zero_grad()
            loss = mse(model, inputs, targets)
            loss.backward()
            return loss

        optimizer.step(closure)
    return [model]


def penalty(size, s):
    """A gradient penalty: backward through a gradient."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for inputs, targets in batches(size):
        inputs.requires_grad_(True)
        output = model(inputs)
        (slope,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
        optimizer.zero_grad()
        (nn.functional.mse_loss(output, targets) + slope.square().mean()).backward()
        optimizer.step()
    return [model]


def frozen_and_late(size, s):
    """A part is frozen at first, and its group is added later."""
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), 0.1)
    for number, (inputs, targets) in enumerate(batches(size)):
        if number == 2:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": model[0].parameters()})
        optimizer.zero_grad()
        mse(model, inputs, targets).backward()
        optimizer.step()
    return [model]


def fails(size, s):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, (inputs, targets) in enumerate(batches(size)):
        optimizer.zero_grad()
        output = model(inputs)
        if number == 2 and s.rank == 1:
            output.register_hook(lambda _: 1 / 0)
        try:
            nn.functional.mse_loss(output, targets).backward()
        except ZeroDivisionError:
            raise RuntimeError("only rank 1 fails") from None
        optimizer.step()
    return [model]


FORMS = (
    plain,
    loss_is_read,
    retained_gradients,
    without_sync,
    adversaries,
    branches,
    by_closure,
    penalty,
    frozen_and_late,
)


def trained(form, size, s):
    torch.manual_seed(3)
    return torch.cat(
        [
            parameter.detach().flatten()
            for model in form(size, s)
            for parameter in model.parameters()
        ]
    )


if "fails" in sys.argv:
    with session(strategy=AllReduce(), devices=RANKS, launch="fork") as s:
        trained(fails, BATCH // RANKS, s)
for form in FORMS:
    alone = trained(form, BATCH, None)
    with session(strategy=AllReduce(), devices=RANKS, launch="fork") as s:
        together = trained(form, BATCH // RANKS, s)
    print(form.__name__, f"{((alone - together).abs().max() / alone.abs().max()).item():.1e}")
